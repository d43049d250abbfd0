"""Parts that velocity tasks of legged robots share.

A task puts them together with its own rewards; see ``tasks/go1/velocity.py``. Feet are named once:
a foot ``FR_foot`` is a site, with a contact sensor ``FR_foot_contact`` (``data="found force"``) and
a sensor ``FR_foot_linvel`` of its velocity along the world's axes. Imports no torch.
"""

from __future__ import annotations

import functools
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
        foot_contact: the critic's ``mdp.foot_contact`` or ``mdp.foot_contact_forces``.
    """
    contacts = f"{feet}_contact"

    def both(noisy: bool) -> dict[str, ObservationTermCfg]:
        def term(func: Callable[..., Any], noise: float, **params: Any) -> ObservationTermCfg:
            return ObservationTermCfg(func, noise=_noise(noise) if noisy else None, **params)

        biased = {"biased": True} if noisy else {}
        return {
            "base_lin_vel": term(mdp.base_lin_vel, 0.1),
            "base_ang_vel": term(mdp.base_ang_vel, 0.2),
            "projected_gravity": term(mdp.projected_gravity, 0.05),
            "command": ObservationTermCfg(mdp.generated_commands, command="velocity"),
            "joint_pos": term(mdp.joint_pos_rel, 0.01, joints=joints, **biased),
            "joint_vel": term(mdp.joint_vel, joint_vel_noise, joints=joints),
            "last_action": ObservationTermCfg(mdp.last_action),
        }

    privileged = {
        "foot_contact": ObservationTermCfg(foot_contact, sensors=contacts),
        "foot_air_time": ObservationTermCfg(mdp.foot_air_time, sensors=contacts),
        "foot_height": ObservationTermCfg(mdp.foot_height, sites=feet),
    }
    return {"actor": both(noisy=True), "critic": {**both(noisy=False), **privileged}}


def velocity_randomization(
    joints: Names,
    foot_geoms: str,
    trunk: str,
    *,
    mass_scale: Range,
    center_of_mass: tuple[Range, Range, Range],
    encoder_bias: float,
) -> dict[str, EventTermCfg]:
    """Domain randomization at start-up.

    Args:
        joints: the joints that move.
        foot_geoms: pattern of the geoms whose friction is drawn.
        trunk: the body that carries a load of unknown mass.
        mass_scale: bounds of the factor on the trunk's mass.
        center_of_mass: bounds of the shift of the trunk's centre of mass along its axes, m.
        encoder_bias: bound of what encoders are wrong by, rad.
    """
    startup = functools.partial(EventTermCfg, mode="startup")
    encoders, gains = (-encoder_bias, encoder_bias), (0.9, 1.1)
    return {
        "friction": startup(mdp.randomize_friction, geoms=foot_geoms, friction=(0.4, 1.2)),
        "trunk_mass": startup(mdp.randomize_mass, bodies=trunk, scale=mass_scale),
        "trunk_center_of_mass": startup(
            mdp.randomize_center_of_mass, bodies=trunk, offset=center_of_mass
        ),
        "encoder_bias": startup(mdp.randomize_encoder_bias, joints=joints, bias=encoders),
        "gains": startup(
            mdp.randomize_actuator_gains, joints=joints, stiffness=gains, damping=gains
        ),
    }


def velocity_resets(
    joints: Names, *, joint_position: float, push: float
) -> dict[str, EventTermCfg]:
    """Resets, with joints up to `joint_position` from home, rad, and pushes.

    A push changes the velocity by up to `push`, m/s and rad/s.
    """
    home = (-joint_position, joint_position)
    return {
        "reset_base": EventTermCfg(
            mdp.reset_root_state_uniform,
            "reset",
            pose_range={"x": (-0.5, 0.5), "y": (-0.5, 0.5), "yaw": (-3.14, 3.14)},
        ),
        "reset_joints": EventTermCfg(
            mdp.reset_joints_uniform, "reset", joints=joints, position=home
        ),
        "push": EventTermCfg(
            mdp.push_by_setting_velocity,
            "interval",
            interval_range_s=(5.0, 10.0),
            velocity_range=dict.fromkeys(("x", "y", "yaw"), (-push, push)),
        ),
    }


def put_on_rough_ground(
    cfg: TaskCfg, sub_terrains: dict[str, SubTerrainCfg], *, base_height: float
) -> None:
    """Change a velocity task in place: terrain, height scans, and a curriculum over its levels.

    `base_height` is the height of the base above the ground that a scan shows as zero, m.
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
