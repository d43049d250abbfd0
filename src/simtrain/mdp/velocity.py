"""What the tasks of legged robots that walk on command have in common: parts of a velocity task.

A task puts them together with its own rewards; see ``tasks/go1/velocity.py``. Feet are named once:
a foot ``FR_foot`` is a site, with a contact sensor ``FR_foot_contact`` (``data="found force"``) and
a sensor ``FR_foot_linvel`` of its velocity along the world's axes. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simtrain import mdp
from simtrain.env.cfg import (
    CommandTermCfg,
    CurriculumTermCfg,
    EventTermCfg,
    Names,
    ObservationTermCfg,
    SubTerrainCfg,
    TaskCfg,
    TerminationTermCfg,
    TerrainCfg,
    UniformNoiseCfg,
)

Range = tuple[float, float]


def velocity_command(lin_vel_x: Range, lin_vel_y: Range, ang_vel_z: Range) -> CommandTermCfg:
    """Velocities to follow, m/s and rad/s; a quarter keep a heading, a tenth stand."""
    return CommandTermCfg(
        mdp.UniformVelocityCommand,
        resampling_time_range=(4.0, 8.0),
        lin_vel_x=lin_vel_x,
        lin_vel_y=lin_vel_y,
        ang_vel_z=ang_vel_z,
        rel_heading_envs=0.25,
        rel_standing_envs=0.1,
    )


def velocity_observations(
    joints: Names, feet: str, *, joint_vel_noise: float, foot_contact: Callable[..., Any]
) -> dict[str, dict[str, ObservationTermCfg]]:
    """Groups ``actor``, noisy, and ``critic``, true and with the feet's state besides.

    Args:
        joints: the joints that the policy sees.
        feet: pattern of the feet's names.
        joint_vel_noise: bound of the noise on joint velocities, rad/s.
        foot_contact: what the critic sees of the feet's contact sensors: ``mdp.foot_contact`` or
            ``mdp.foot_contact_forces``.
    """
    contacts = f"{feet}_contact"
    command = {"command": ObservationTermCfg(mdp.generated_commands, command="velocity")}
    noisy = {
        "base_lin_vel": ObservationTermCfg(mdp.base_lin_vel, noise=_noise(0.1)),
        "base_ang_vel": ObservationTermCfg(mdp.base_ang_vel, noise=_noise(0.2)),
        "projected_gravity": ObservationTermCfg(mdp.projected_gravity, noise=_noise(0.05)),
        **command,
        "joint_pos": ObservationTermCfg(
            mdp.joint_pos_rel, joints=joints, biased=True, noise=_noise(0.01)
        ),
        "joint_vel": ObservationTermCfg(
            mdp.joint_vel, joints=joints, noise=_noise(joint_vel_noise)
        ),
        "last_action": ObservationTermCfg(mdp.last_action),
    }
    privileged = {
        "base_lin_vel": ObservationTermCfg(mdp.base_lin_vel),
        "base_ang_vel": ObservationTermCfg(mdp.base_ang_vel),
        "projected_gravity": ObservationTermCfg(mdp.projected_gravity),
        **command,
        "joint_pos": ObservationTermCfg(mdp.joint_pos_rel, joints=joints),
        "joint_vel": ObservationTermCfg(mdp.joint_vel, joints=joints),
        "last_action": ObservationTermCfg(mdp.last_action),
        "foot_contact": ObservationTermCfg(foot_contact, sensors=contacts),
        "foot_air_time": ObservationTermCfg(mdp.foot_air_time, sensors=contacts),
        "foot_height": ObservationTermCfg(mdp.foot_height, sites=feet),
    }
    return {"actor": noisy, "critic": privileged}


def velocity_events(
    joints: Names,
    foot_geoms: str,
    trunk: str,
    *,
    mass_scale: Range,
    center_of_mass: tuple[Range, Range, Range],
    encoder_bias: float,
    joint_position: float,
    push: float,
) -> dict[str, EventTermCfg]:
    """Domain randomization, resets and pushes.

    Args:
        joints: the joints that move.
        foot_geoms: pattern of the geoms whose friction differs between environments.
        trunk: the body that carries a load of unknown mass.
        mass_scale: bounds of the factor on the trunk's mass.
        center_of_mass: bounds of the shift of the trunk's centre of mass along its axes, m.
        encoder_bias: bound of what encoders are wrong by, rad.
        joint_position: bound of how far from home joints start, rad.
        push: bound of the change of velocity of a push, m/s and rad/s.
    """
    sideways = (-push, push)
    return {
        "friction": EventTermCfg(
            mdp.randomize_friction, mode="startup", geoms=foot_geoms, friction=(0.4, 1.2)
        ),
        "trunk_mass": EventTermCfg(
            mdp.randomize_mass, mode="startup", bodies=trunk, scale=mass_scale
        ),
        "trunk_center_of_mass": EventTermCfg(
            mdp.randomize_center_of_mass, mode="startup", bodies=trunk, offset=center_of_mass
        ),
        "encoder_bias": EventTermCfg(
            mdp.randomize_encoder_bias,
            mode="startup",
            joints=joints,
            bias=(-encoder_bias, encoder_bias),
        ),
        "gains": EventTermCfg(
            mdp.randomize_actuator_gains,
            mode="startup",
            joints=joints,
            stiffness=(0.9, 1.1),
            damping=(0.9, 1.1),
        ),
        "reset_base": EventTermCfg(
            mdp.reset_root_state_uniform,
            mode="reset",
            pose_range={"x": (-0.5, 0.5), "y": (-0.5, 0.5), "yaw": (-3.14, 3.14)},
        ),
        "reset_joints": EventTermCfg(
            mdp.reset_joints_uniform,
            mode="reset",
            joints=joints,
            position=(-joint_position, joint_position),
        ),
        "push": EventTermCfg(
            mdp.push_by_setting_velocity,
            mode="interval",
            interval_range_s=(5.0, 10.0),
            velocity_range={"x": sideways, "y": sideways, "yaw": sideways},
        ),
    }


def put_on_rough_ground(
    cfg: TaskCfg, sub_terrains: dict[str, SubTerrainCfg], *, base_height: float
) -> None:
    """Change a velocity task in place: terrain, height scans, and a curriculum over its levels.

    Args:
        cfg: the task on a flat floor.
        sub_terrains: the kinds of tiles.
        base_height: height of the base above the ground that a scan shows as zero, m.
    """
    cfg.terrain = TerrainCfg(sub_terrains=sub_terrains, max_initial_level=2)
    for group, noise in (("actor", _noise(0.02)), ("critic", None)):
        cfg.observations[group]["height_scan"] = ObservationTermCfg(
            mdp.height_scan, noise=noise, clip=(-1.0, 1.0), offset=base_height
        )
    cfg.curricula = {
        "terrain_levels": CurriculumTermCfg(mdp.terrain_levels, command="velocity"),
        "command_ranges": CurriculumTermCfg(
            mdp.command_ranges, command="velocity", start=0.5, steps=2400
        ),
    }
    cfg.terminations["out_of_bounds"] = TerminationTermCfg(mdp.terrain_out_of_bounds, time_out=True)


def _noise(bound: float) -> UniformNoiseCfg:
    return UniformNoiseCfg(-bound, bound)
