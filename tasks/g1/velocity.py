"""G1 follows velocity commands: forward, sideways, turning, and standing still."""

from __future__ import annotations

from pathlib import Path

from simtrain import (
    ActorCfg,
    CriticCfg,
    JointPositionActionCfg,
    MetricTermCfg,
    Mirror,
    PpoCfg,
    RewardTermCfg,
    SimCfg,
    SubTerrainCfg,
    SymmetryCfg,
    TaskCfg,
    TerminationTermCfg,
    mdp,
    task,
)
from simtrain.mdp.locomotion.velocity import (
    gait_clock,
    put_on_rough_ground,
    velocity_command,
    velocity_observations,
    velocity_randomization,
    velocity_resets,
)

# Legs and waist; the arms are held where the keyframe has them.
JOINTS = ("(left|right)_(hip_.*|knee|ankle_.*)_joint", "waist_.*_joint")
FEET = "(left|right)_foot"
CONTACTS = f"{FEET}_contact"
VELOCITIES = f"{FEET}_linvel"
CALM_STEPS = 7200  # without pushes and randomization, at first

# What lifts a foot by 0.1 m: a robot that steps from the first action learns to balance its steps,
# where one that stands learns to stand.
BEND = {
    ".*_hip_pitch_joint": -0.35,
    ".*_knee_joint": 0.7,
    ".*_ankle_pitch_joint": -0.35,
}

# An eighth of what each motor's largest torque bends its servo by: noise of the first policy that
# lets the robot stand for a second.
ACTION_SCALE = {
    "(.*_hip_(pitch|yaw)|waist_yaw)_joint": 0.28,
    ".*_(hip_roll|knee)_joint": 0.18,
    "(.*_ankle_.*|waist_(roll|pitch))_joint": 0.22,
}


@task("g1-velocity-flat")
def g1_velocity_flat() -> TaskCfg:
    """Follow velocity commands on a flat floor."""
    return TaskCfg(
        model=Path(__file__).with_name("scene.xml"),
        keyframe="knees_bent",
        timestep=0.01,
        decimation=2,
        episode_length_s=20.0,
        actions={"joint_pos": JointPositionActionCfg(JOINTS, scale=ACTION_SCALE, reference="gait")},
        commands={
            "velocity": velocity_command((-0.5, 1.0), (-0.3, 0.3), (-0.7, 0.7)),
            "gait": gait_clock(
                FEET,
                offsets=(0.0, 0.5),
                frequency=1.7,
                stance=0.55,
                command_threshold=-1.0,
                bend=BEND,
            ),
        },
        observations=velocity_observations(
            JOINTS, FEET, joint_vel_noise=0.5, foot_contact=mdp.foot_contact_forces
        ),
        rewards={
            "track_lin_vel_xy": RewardTermCfg(
                mdp.track_lin_vel_xy_exp, weight=3.0, command="velocity", std=0.4
            ),
            "track_ang_vel_z": RewardTermCfg(
                mdp.track_ang_vel_z_exp, weight=1.5, command="velocity", std=0.5
            ),
            "is_alive": RewardTermCfg(mdp.is_alive, weight=0.15),
            "feet_contact": RewardTermCfg(
                mdp.feet_contact_by_phase, weight=1.0, sensors=CONTACTS, gait="gait"
            ),
            "feet_height": RewardTermCfg(
                mdp.feet_height_by_phase,
                weight=2.0,
                sites=FEET,
                gait="gait",
                swing_height=0.09,
                std=0.05,
            ),
            "joint_pos": RewardTermCfg(
                mdp.track_reference_joint_pos_exp,
                weight=2.0,
                joints=tuple(BEND),
                command="gait",
                std=0.5,
            ),
            "posture": RewardTermCfg(
                mdp.posture,
                weight=0.5,
                joints=JOINTS,
                command="velocity",
                std_standing=0.1,
                std_moving={
                    ".*_hip_yaw_joint": 0.3,
                    ".*_(hip_roll|ankle_roll)_joint": 0.2,
                    "waist_.*_joint": 0.1,
                },
            ),
            "base_height": RewardTermCfg(mdp.base_height_l2, weight=-50.0, target_height=0.74),
            "flat_orientation": RewardTermCfg(mdp.flat_orientation_l2, weight=-5.0),
            "lin_vel_z": RewardTermCfg(mdp.lin_vel_z_l2, weight=-0.5),
            "ang_vel_xy": RewardTermCfg(mdp.ang_vel_xy_l2, weight=-0.05),
            "joint_pos_limits": RewardTermCfg(mdp.joint_pos_limits, weight=-1.0, joints=JOINTS),
            "action_rate": RewardTermCfg(mdp.action_rate_l2, weight=-0.01),
            "feet_slide": RewardTermCfg(
                mdp.feet_slide, weight=-0.2, sensors=CONTACTS, velocity_sensors=VELOCITIES
            ),
            "self_collision": RewardTermCfg(
                mdp.self_collision_cost, weight=-0.1, sensors="self_collision"
            ),
        },
        terminations={
            "time_out": TerminationTermCfg(mdp.time_out, time_out=True),
            "fell_over": TerminationTermCfg(mdp.bad_orientation, limit_angle=0.9),
            "sank": TerminationTermCfg(mdp.root_height_below_minimum, minimum_height=0.45),
        },
        metrics={
            "lin_vel_error": MetricTermCfg(mdp.lin_vel_error, command="velocity"),
            "ang_vel_error": MetricTermCfg(mdp.ang_vel_error, command="velocity"),
        },
        events={
            **velocity_randomization(
                JOINTS,
                foot_geoms=f"{FEET}[12]_collision",
                trunk="torso_link",
                mass_scale=(0.9, 1.1),
                center_of_mass=((-0.02, 0.02), (-0.02, 0.02), (-0.02, 0.02)),
                encoder_bias=0.015,
                after_steps=CALM_STEPS,
            ),
            **velocity_resets(
                JOINTS, joint_position=0.05, rise=0.013, push=0.3, push_after_steps=CALM_STEPS
            ),
        },
        symmetry=Mirror(),
        sim=SimCfg(iterations=6, ls_iterations=8),  # with 3 and 5 soles slip that should not
        num_envs=256,
        num_envs_on_gpu=4096,
        num_steps_per_env=24,
        max_iterations=800,
        # Many small rollouts with their mirror images: the gradient's noise is what holds back.
        ppo=PpoCfg(
            actor=ActorCfg(hidden_dims=(256, 128), init_std=0.6),
            critic=CriticCfg(hidden_dims=(256, 128)),
            num_learning_epochs=5,
            num_mini_batches=1,
            desired_kl=0.03,
            desired_kl_end=0.005,
            gamma=0.98,
            lam=0.9,
            entropy_coef=0.001,
            symmetry=SymmetryCfg(augment=True),
        ),
    )


@task("g1-velocity-rough")
def g1_velocity_rough() -> TaskCfg:
    """Follow velocity commands over slopes, stairs, boxes, waves and rough ground."""
    cfg = g1_velocity_flat()
    slope = {"slope": (0.0, 0.25)}
    steps = {"step_height": (0.02, 0.1), "step_width": 0.4}
    sub_terrains = {
        "flat": SubTerrainCfg(mdp.flat, 2.0),
        "slope_down": SubTerrainCfg(mdp.pyramid_slope, **slope),
        "slope_up": SubTerrainCfg(mdp.pyramid_slope, **slope, inverted=True),
        "stairs_down": SubTerrainCfg(mdp.pyramid_stairs, **steps),
        "stairs_up": SubTerrainCfg(mdp.pyramid_stairs, **steps, inverted=True),
        "boxes": SubTerrainCfg(mdp.random_boxes, box_height=(0.01, 0.06)),
        "waves": SubTerrainCfg(mdp.waves, amplitude=(0.01, 0.1)),
        "rough": SubTerrainCfg(mdp.random_rough, noise=(0.01, 0.04)),
    }
    put_on_rough_ground(cfg, sub_terrains, base_height=0.78)
    cfg.rewards["lin_vel_z"].weight = -0.2
    cfg.rewards["flat_orientation"].weight = -1.0
    cfg.max_iterations = 3000
    return cfg
