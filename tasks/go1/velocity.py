"""Go1 follows velocity commands: forward, sideways, turning, and standing still."""

from __future__ import annotations

import copy
from pathlib import Path

from simtrain import (
    ActorCfg,
    CriticCfg,
    JointPositionActionCfg,
    MetricTermCfg,
    Mirror,
    PpoCfg,
    RewardTermCfg,
    SubTerrainCfg,
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

JOINTS = (".*_hip_joint", ".*_thigh_joint", ".*_calf_joint")
FEET = "(FR|FL|RR|RL)_foot"
CONTACTS = f"{FEET}_contact"
VELOCITIES = f"{FEET}_linvel"
FOOT_RADIUS = 0.023
TROT = (0.0, 0.5, 0.5, 0.0)  # front right and rear left together, then the others
BEND = {".*_thigh_joint": 0.22, ".*_calf_joint": -0.44}  # what lifts a foot by 0.08 m


@task("go1-velocity-flat")
def go1_velocity_flat() -> TaskCfg:
    """Follow velocity commands on a flat floor."""
    return TaskCfg(
        model=Path(__file__).with_name("scene.xml"),
        keyframe="home",
        timestep=0.01,
        decimation=2,
        episode_length_s=20.0,
        actions={"joint_pos": JointPositionActionCfg(JOINTS, scale=0.5, reference="gait")},
        commands={
            "velocity": velocity_command((-1.0, 1.0), (-0.5, 0.5), (-1.0, 1.0)),
            "gait": gait_clock(
                FEET, offsets=TROT, frequency=3.2, stance=0.55, stopping_time=0.5, bend=BEND
            ),
        },
        observations=velocity_observations(
            JOINTS, FEET, joint_vel_noise=1.5, foot_contact=mdp.foot_contact
        ),
        rewards={
            "track_lin_vel_xy": RewardTermCfg(
                mdp.track_lin_vel_xy_exp, weight=2.0, command="velocity", std=0.35
            ),
            "track_ang_vel_z": RewardTermCfg(
                mdp.track_ang_vel_z_exp, weight=1.0, command="velocity", std=0.5
            ),
            "posture": RewardTermCfg(
                mdp.posture,
                weight=0.5,
                joints=JOINTS,
                command="velocity",
                std_standing=0.1,
                std_moving={".*_hip_joint": 0.2, ".*_thigh_joint": 0.4, ".*_calf_joint": 0.6},
            ),
            "lin_vel_z": RewardTermCfg(mdp.lin_vel_z_l2, weight=-1.0),
            "ang_vel_xy": RewardTermCfg(mdp.ang_vel_xy_l2, weight=-0.05),
            "flat_orientation": RewardTermCfg(mdp.flat_orientation_l2, weight=-2.0),
            "joint_pos_limits": RewardTermCfg(mdp.joint_pos_limits, weight=-1.0, joints=JOINTS),
            "action_rate": RewardTermCfg(mdp.action_rate_l2, weight=-0.02),
            "feet_contact": RewardTermCfg(
                mdp.feet_contact_by_phase, weight=0.5, sensors=CONTACTS, gait="gait"
            ),
            "feet_height": RewardTermCfg(
                mdp.feet_height_by_phase,
                weight=1.0,
                sites=FEET,
                gait="gait",
                swing_height=0.08,
                std=0.1,
                sole=FOOT_RADIUS,
            ),
            "feet_slide": RewardTermCfg(
                mdp.feet_slide, weight=-0.1, sensors=CONTACTS, velocity_sensors=VELOCITIES
            ),
        },
        terminations={
            "time_out": TerminationTermCfg(mdp.time_out, time_out=True),
            "fell_over": TerminationTermCfg(mdp.bad_orientation, limit_angle=1.0),
        },
        metrics={
            "lin_vel_error": MetricTermCfg(mdp.lin_vel_error, command="velocity"),
            "ang_vel_error": MetricTermCfg(mdp.ang_vel_error, command="velocity"),
        },
        events={
            **velocity_randomization(
                JOINTS,
                foot_geoms=f"{FEET}_collision",
                trunk="trunk",
                mass_scale=(0.85, 1.25),
                center_of_mass=((-0.03, 0.03), (-0.03, 0.03), (-0.02, 0.02)),
                encoder_bias=0.02,
            ),
            **velocity_resets(JOINTS, joint_position=0.1, rise=0.021, push=0.5),
        },
        symmetry=Mirror(),
        num_envs=512,
        num_envs_on_gpu=4096,
        num_steps_per_env=24,
        max_iterations=300,
        # Many small changes of the policy, each as large as it can be; see docs/results.md.
        ppo=PpoCfg(
            actor=ActorCfg(hidden_dims=(128, 128), init_std=0.5),
            critic=CriticCfg(hidden_dims=(128, 128)),
            num_learning_epochs=5,
            num_mini_batches=2,
            desired_kl=0.05,
            desired_kl_end=0.005,
            gamma=0.97,
            entropy_coef=0.005,
        ),
    )


@task("go1-velocity-rough")
def go1_velocity_rough() -> TaskCfg:
    """Follow velocity commands over slopes, stairs, boxes, waves and rough ground."""
    cfg = go1_velocity_flat()
    slope = {"slope": (0.0, 0.4)}
    steps = {"step_height": (0.02, 0.15), "step_width": 0.3}
    sub_terrains = {
        "flat": SubTerrainCfg(mdp.flat),
        "slope_down": SubTerrainCfg(mdp.pyramid_slope, **slope),
        "slope_up": SubTerrainCfg(mdp.pyramid_slope, **slope, inverted=True),
        "stairs_down": SubTerrainCfg(mdp.pyramid_stairs, 2.0, **steps),
        "stairs_up": SubTerrainCfg(mdp.pyramid_stairs, 2.0, **steps, inverted=True),
        "boxes": SubTerrainCfg(mdp.random_boxes, box_height=(0.02, 0.1)),
        "waves": SubTerrainCfg(mdp.waves, amplitude=(0.02, 0.15)),
        "rough": SubTerrainCfg(mdp.random_rough, noise=(0.01, 0.05)),
    }
    put_on_rough_ground(cfg, sub_terrains, base_height=0.27)
    # The trunk follows the ground.
    cfg.rewards["lin_vel_z"].weight = -0.5
    cfg.rewards["flat_orientation"].weight = -0.5
    cfg.max_iterations = 500
    return cfg


@task("go1-velocity-rough-blind")
def go1_velocity_rough_blind() -> TaskCfg:
    """The same by proprioception alone, remembered: for a student of go1-velocity-rough."""
    cfg = go1_velocity_rough()
    unknown = ("base_lin_vel", "height_scan")
    seen = {name: term for name, term in cfg.observations["actor"].items() if name not in unknown}
    cfg.observations["proprioception"] = copy.deepcopy(seen)
    cfg.ppo.actor = ActorCfg(
        obs_groups=("proprioception",),
        model="gru",
        hidden_dims=(128, 128),
        rnn_hidden_dim=128,
        init_std=0.2,  # of the student's own actions, while it learns from its teacher's
    )
    return cfg
