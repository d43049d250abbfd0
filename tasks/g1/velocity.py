"""G1 follows velocity commands: forward, sideways, turning, and standing still."""

from __future__ import annotations

from pathlib import Path

from simtrain import (
    ActorCfg,
    CommandTermCfg,
    CriticCfg,
    CurriculumTermCfg,
    EventTermCfg,
    JointPositionActionCfg,
    MetricTermCfg,
    ObservationTermCfg,
    PpoCfg,
    RewardTermCfg,
    SubTerrainCfg,
    TaskCfg,
    TerminationTermCfg,
    TerrainCfg,
    UniformNoiseCfg,
    mdp,
    task,
)

JOINTS = "(left|right|waist)_.*_joint"
FEET = "(left|right)_foot"
CONTACTS = f"{FEET}_contact"
VELOCITIES = f"{FEET}_linvel"

# A quarter of what each motor's largest torque bends its servo by.
ACTION_SCALE = {
    "(.*_hip_(pitch|yaw)|waist_yaw)_joint": 0.55,
    ".*_(hip_roll|knee)_joint": 0.35,
    "(.*_ankle_.*|waist_(roll|pitch))_joint": 0.44,
    ".*_(shoulder_.*|elbow|wrist_roll)_joint": 0.44,
    ".*_wrist_(pitch|yaw)_joint": 0.07,
}


@task("g1-velocity-flat")
def g1_velocity_flat() -> TaskCfg:
    """Follow velocity commands on a flat floor."""
    noisy = {
        "base_lin_vel": ObservationTermCfg(mdp.base_lin_vel, noise=UniformNoiseCfg(-0.1, 0.1)),
        "base_ang_vel": ObservationTermCfg(mdp.base_ang_vel, noise=UniformNoiseCfg(-0.2, 0.2)),
        "projected_gravity": ObservationTermCfg(
            mdp.projected_gravity, noise=UniformNoiseCfg(-0.05, 0.05)
        ),
        "command": ObservationTermCfg(mdp.generated_commands, command="velocity"),
        "joint_pos": ObservationTermCfg(
            mdp.joint_pos_rel, joints=JOINTS, biased=True, noise=UniformNoiseCfg(-0.01, 0.01)
        ),
        "joint_vel": ObservationTermCfg(
            mdp.joint_vel, joints=JOINTS, noise=UniformNoiseCfg(-0.5, 0.5)
        ),
        "last_action": ObservationTermCfg(mdp.last_action),
    }
    privileged = {
        "base_lin_vel": ObservationTermCfg(mdp.base_lin_vel),
        "base_ang_vel": ObservationTermCfg(mdp.base_ang_vel),
        "projected_gravity": ObservationTermCfg(mdp.projected_gravity),
        "command": ObservationTermCfg(mdp.generated_commands, command="velocity"),
        "joint_pos": ObservationTermCfg(mdp.joint_pos_rel, joints=JOINTS),
        "joint_vel": ObservationTermCfg(mdp.joint_vel, joints=JOINTS),
        "last_action": ObservationTermCfg(mdp.last_action),
        "foot_contact_forces": ObservationTermCfg(mdp.foot_contact_forces, sensors=CONTACTS),
        "foot_air_time": ObservationTermCfg(mdp.foot_air_time, sensors=CONTACTS),
        "foot_height": ObservationTermCfg(mdp.foot_height, sites=FEET),
    }
    return TaskCfg(
        model=Path(__file__).with_name("scene.xml"),
        keyframe="home",
        timestep=0.005,
        decimation=4,
        episode_length_s=20.0,
        actions={"joint_pos": JointPositionActionCfg(JOINTS, scale=ACTION_SCALE)},
        commands={
            "velocity": CommandTermCfg(
                mdp.UniformVelocityCommand,
                resampling_time_range=(4.0, 8.0),
                lin_vel_x=(-0.5, 1.0),
                lin_vel_y=(-0.3, 0.3),
                ang_vel_z=(-0.7, 0.7),
                rel_heading_envs=0.25,
                rel_standing_envs=0.1,
            )
        },
        observations={"actor": noisy, "critic": privileged},
        rewards={
            "track_lin_vel_xy": RewardTermCfg(
                mdp.track_lin_vel_xy_exp, weight=2.0, command="velocity", std=0.5
            ),
            "track_ang_vel_z": RewardTermCfg(
                mdp.track_ang_vel_z_exp, weight=1.0, command="velocity", std=0.5
            ),
            "is_alive": RewardTermCfg(mdp.is_alive, weight=1.0),
            "posture": RewardTermCfg(
                mdp.posture,
                weight=1.0,
                joints=JOINTS,
                command="velocity",
                std_standing=0.1,
                std_moving={
                    ".*_(hip_pitch|knee)_joint": 0.4,
                    ".*_(hip_roll|hip_yaw|ankle_roll)_joint": 0.15,
                    ".*_ankle_pitch_joint": 0.3,
                    "waist_.*_joint": 0.15,
                    ".*_(shoulder_.*|elbow|wrist_.*)_joint": 0.2,
                },
            ),
            "flat_orientation": RewardTermCfg(mdp.flat_orientation_l2, weight=-2.0),
            "lin_vel_z": RewardTermCfg(mdp.lin_vel_z_l2, weight=-0.5),
            "ang_vel_xy": RewardTermCfg(mdp.ang_vel_xy_l2, weight=-0.02),
            "angular_momentum": RewardTermCfg(
                mdp.angular_momentum_l2, weight=-0.02, sensors="root_angmom"
            ),
            "joint_pos_limits": RewardTermCfg(mdp.joint_pos_limits, weight=-1.0, joints=JOINTS),
            "action_rate": RewardTermCfg(mdp.action_rate_l2, weight=-0.01),
            "feet_air_time": RewardTermCfg(
                mdp.feet_air_time, weight=3.0, sensors=CONTACTS, command="velocity", threshold=0.3
            ),
            "feet_down": RewardTermCfg(
                mdp.feet_contact_without_cmd, weight=1.0, sensors=CONTACTS, command="velocity"
            ),
            "feet_clearance": RewardTermCfg(
                mdp.feet_clearance,
                weight=-1.0,
                sites=FEET,
                velocity_sensors=VELOCITIES,
                target_height=0.1,
            ),
            "feet_slide": RewardTermCfg(
                mdp.feet_slide, weight=-0.2, sensors=CONTACTS, velocity_sensors=VELOCITIES
            ),
            "soft_landing": RewardTermCfg(mdp.soft_landing, weight=-1e-4, sensors=CONTACTS),
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
            "friction": EventTermCfg(
                mdp.randomize_friction,
                mode="startup",
                geoms=f"{FEET}[12]_collision",
                friction=(0.4, 1.2),
            ),
            "torso_mass": EventTermCfg(
                mdp.randomize_mass, mode="startup", bodies="torso_link", scale=(0.9, 1.1)
            ),
            "torso_center_of_mass": EventTermCfg(
                mdp.randomize_center_of_mass,
                mode="startup",
                bodies="torso_link",
                offset=((-0.02, 0.02), (-0.02, 0.02), (-0.02, 0.02)),
            ),
            "encoder_bias": EventTermCfg(
                mdp.randomize_encoder_bias, mode="startup", joints=JOINTS, bias=(-0.015, 0.015)
            ),
            "gains": EventTermCfg(
                mdp.randomize_actuator_gains,
                mode="startup",
                joints=JOINTS,
                stiffness=(0.9, 1.1),
                damping=(0.9, 1.1),
            ),
            "reset_base": EventTermCfg(
                mdp.reset_root_state_uniform,
                mode="reset",
                pose_range={"x": (-0.5, 0.5), "y": (-0.5, 0.5), "yaw": (-3.14, 3.14)},
            ),
            "reset_joints": EventTermCfg(
                mdp.reset_joints_uniform, mode="reset", joints=JOINTS, position=(-0.05, 0.05)
            ),
            "push": EventTermCfg(
                mdp.push_by_setting_velocity,
                mode="interval",
                interval_range_s=(5.0, 10.0),
                velocity_range={"x": (-0.3, 0.3), "y": (-0.3, 0.3), "yaw": (-0.3, 0.3)},
            ),
        },
        num_envs=1024,
        num_steps_per_env=24,
        max_iterations=1500,
        ppo=PpoCfg(
            actor=ActorCfg(hidden_dims=(256, 128), init_std=0.5),
            critic=CriticCfg(hidden_dims=(256, 128)),
            num_learning_epochs=4,
            entropy_coef=0.003,
        ),
    )


@task("g1-velocity-rough")
def g1_velocity_rough() -> TaskCfg:
    """Follow velocity commands over slopes, stairs, boxes, waves and rough ground."""
    cfg = g1_velocity_flat()
    slope = {"slope": (0.0, 0.25)}
    steps = {"step_height": (0.02, 0.1), "step_width": 0.4}
    cfg.terrain = TerrainCfg(
        sub_terrains={
            "flat": SubTerrainCfg(mdp.flat, 2.0),
            "slope_down": SubTerrainCfg(mdp.pyramid_slope, **slope),
            "slope_up": SubTerrainCfg(mdp.pyramid_slope, **slope, inverted=True),
            "stairs_down": SubTerrainCfg(mdp.pyramid_stairs, **steps),
            "stairs_up": SubTerrainCfg(mdp.pyramid_stairs, **steps, inverted=True),
            "boxes": SubTerrainCfg(mdp.random_boxes, box_height=(0.01, 0.06)),
            "waves": SubTerrainCfg(mdp.waves, amplitude=(0.01, 0.1)),
            "rough": SubTerrainCfg(mdp.random_rough, noise=(0.01, 0.04)),
        },
        max_initial_level=2,
    )
    cfg.observations["actor"]["height_scan"] = ObservationTermCfg(
        mdp.height_scan, noise=UniformNoiseCfg(-0.02, 0.02), clip=(-1.0, 1.0), offset=0.78
    )
    cfg.observations["critic"]["height_scan"] = ObservationTermCfg(
        mdp.height_scan, clip=(-1.0, 1.0), offset=0.78
    )
    cfg.curricula = {
        "terrain_levels": CurriculumTermCfg(mdp.terrain_levels, command="velocity"),
        "command_ranges": CurriculumTermCfg(
            mdp.command_ranges, command="velocity", start=0.5, steps=2400
        ),
    }
    cfg.terminations["out_of_bounds"] = TerminationTermCfg(mdp.terrain_out_of_bounds, time_out=True)
    cfg.rewards["lin_vel_z"].weight = -0.2
    cfg.rewards["flat_orientation"].weight = -1.0
    cfg.max_iterations = 3000
    return cfg
