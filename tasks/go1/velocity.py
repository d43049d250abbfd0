"""Go1 follows velocity commands: forward, sideways, turning, and standing still."""

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

JOINTS = (".*_hip_joint", ".*_thigh_joint", ".*_calf_joint")
FEET = "(FR|FL|RR|RL)_foot"
CONTACTS = f"{FEET}_contact"
VELOCITIES = f"{FEET}_linvel"


@task("go1-velocity-flat")
def go1_velocity_flat() -> TaskCfg:
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
            mdp.joint_vel, joints=JOINTS, noise=UniformNoiseCfg(-1.5, 1.5)
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
        "foot_contact": ObservationTermCfg(mdp.foot_contact, sensors=CONTACTS),
        "foot_air_time": ObservationTermCfg(mdp.foot_air_time, sensors=CONTACTS),
        "foot_height": ObservationTermCfg(mdp.foot_height, sites=FEET),
    }
    return TaskCfg(
        model=Path(__file__).with_name("scene.xml"),
        keyframe="home",
        timestep=0.005,
        decimation=4,
        episode_length_s=20.0,
        actions={"joint_pos": JointPositionActionCfg(JOINTS, scale=0.3)},
        commands={
            "velocity": CommandTermCfg(
                mdp.UniformVelocityCommand,
                resampling_time_range=(4.0, 8.0),
                lin_vel_x=(-1.0, 1.0),
                lin_vel_y=(-0.5, 0.5),
                ang_vel_z=(-1.0, 1.0),
                rel_heading_envs=0.25,
                rel_standing_envs=0.1,
            )
        },
        observations={"actor": noisy, "critic": privileged},
        rewards={
            "track_lin_vel_xy": RewardTermCfg(
                mdp.track_lin_vel_xy_exp, weight=2.0, command="velocity", std=0.4
            ),
            "track_ang_vel_z": RewardTermCfg(
                mdp.track_ang_vel_z_exp, weight=1.0, command="velocity", std=0.5
            ),
            "posture": RewardTermCfg(
                mdp.posture,
                weight=1.0,
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
            "feet_air_time": RewardTermCfg(
                mdp.feet_air_time, weight=5.0, sensors=CONTACTS, command="velocity", threshold=0.2
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
            "friction": EventTermCfg(
                mdp.randomize_friction,
                mode="startup",
                geoms=f"{FEET}_collision",
                friction=(0.4, 1.2),
            ),
            "trunk_mass": EventTermCfg(
                mdp.randomize_mass, mode="startup", bodies="trunk", scale=(0.85, 1.25)
            ),
            "trunk_center_of_mass": EventTermCfg(
                mdp.randomize_center_of_mass,
                mode="startup",
                bodies="trunk",
                offset=((-0.03, 0.03), (-0.03, 0.03), (-0.02, 0.02)),
            ),
            "encoder_bias": EventTermCfg(
                mdp.randomize_encoder_bias, mode="startup", joints=JOINTS, bias=(-0.02, 0.02)
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
                mdp.reset_joints_uniform, mode="reset", joints=JOINTS, position=(-0.1, 0.1)
            ),
            "push": EventTermCfg(
                mdp.push_by_setting_velocity,
                mode="interval",
                interval_range_s=(5.0, 10.0),
                velocity_range={"x": (-0.5, 0.5), "y": (-0.5, 0.5), "yaw": (-0.5, 0.5)},
            ),
        },
        num_envs=1024,
        num_steps_per_env=24,
        max_iterations=550,
        ppo=PpoCfg(
            actor=ActorCfg(hidden_dims=(128, 128)),
            critic=CriticCfg(hidden_dims=(128, 128)),
            num_learning_epochs=4,
            entropy_coef=0.005,
        ),
    )


@task("go1-velocity-rough")
def go1_velocity_rough() -> TaskCfg:
    """Follow velocity commands over slopes, stairs, boxes, waves and rough ground."""
    cfg = go1_velocity_flat()
    slope = {"slope": (0.0, 0.4)}
    steps = {"step_height": (0.02, 0.15), "step_width": 0.3}
    cfg.terrain = TerrainCfg(
        sub_terrains={
            "flat": SubTerrainCfg(mdp.flat),
            "slope_down": SubTerrainCfg(mdp.pyramid_slope, **slope),
            "slope_up": SubTerrainCfg(mdp.pyramid_slope, **slope, inverted=True),
            "stairs_down": SubTerrainCfg(mdp.pyramid_stairs, 2.0, **steps),
            "stairs_up": SubTerrainCfg(mdp.pyramid_stairs, 2.0, **steps, inverted=True),
            "boxes": SubTerrainCfg(mdp.random_boxes, box_height=(0.02, 0.1)),
            "waves": SubTerrainCfg(mdp.waves, amplitude=(0.02, 0.15)),
            "rough": SubTerrainCfg(mdp.random_rough, noise=(0.01, 0.05)),
        },
        max_initial_level=2,
    )
    noise = UniformNoiseCfg(-0.02, 0.02)
    cfg.observations["actor"]["height_scan"] = ObservationTermCfg(
        mdp.height_scan, noise=noise, clip=(-1.0, 1.0)
    )
    cfg.observations["critic"]["height_scan"] = ObservationTermCfg(
        mdp.height_scan, clip=(-1.0, 1.0)
    )
    cfg.curricula = {
        "terrain_levels": CurriculumTermCfg(mdp.terrain_levels, command="velocity"),
        "command_ranges": CurriculumTermCfg(
            mdp.command_ranges, command="velocity", start=0.5, steps=2400
        ),
    }
    cfg.terminations["out_of_bounds"] = TerminationTermCfg(mdp.terrain_out_of_bounds, time_out=True)
    # The trunk follows the ground.
    cfg.rewards["lin_vel_z"].weight = -0.5
    cfg.rewards["flat_orientation"].weight = -0.5
    cfg.max_iterations = 1500
    return cfg
