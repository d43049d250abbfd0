"""Parts that velocity tasks of legged robots share.

A task puts them together with its own rewards; see ``tasks/go1/velocity.py``. Feet are named once:
a foot ``FR_foot`` is a site, with a contact sensor ``FR_foot_contact`` (``data="found force"``) and
a sensor ``FR_foot_linvel`` of its velocity along the world's axes. Imports no torch.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any

from simtrain import mdp
from simtrain.env import cfg as cfgs
from simtrain.env.cfg import CommandTermCfg, EventTermCfg, ObservationTermCfg
from simtrain.env.control.cfg import Names

Range = tuple[float, float]


def velocity_command(lin_vel_x: Range, lin_vel_y: Range, ang_vel_z: Range) -> CommandTermCfg:
    """Velocities to follow, m/s and rad/s.

    A quarter keep a heading, a fifth walk straight ahead, a tenth stand.
    """
    ranges = {"lin_vel_x": lin_vel_x, "lin_vel_y": lin_vel_y, "ang_vel_z": ang_vel_z}
    parts = {"rel_heading_envs": 0.25, "rel_forward_envs": 0.2, "rel_standing_envs": 0.1}
    return CommandTermCfg(mdp.UniformVelocityCommand, (4.0, 8.0), **ranges, **parts)


def gait_clock(feet: str, *, frequency: float, **params: Any) -> CommandTermCfg:
    """When each of the `feet` swings; drawn anew at resets alone.

    Their steps a second differ by up to a tenth from `frequency`; `params` are more of those of
    `mdp.GaitClock`.
    """
    bounds = (0.9 * frequency, 1.1 * frequency)
    return CommandTermCfg(mdp.GaitClock, (1e6, 1e6), sites=feet, frequency=bounds, **params)


def velocity_observations(
    joints: Names, feet: str, *, joint_vel_noise: float, foot_contact: Callable[..., Any]
) -> dict[str, dict[str, ObservationTermCfg] | cfgs.ObservationGroupCfg]:
    """Groups ``actor``, noisy, and ``critic``, true and with the feet's state besides.

    The policy sees `joints`, their velocities with noise of up to `joint_vel_noise`, rad/s; `feet`
    is the pattern of the feet's names. `foot_contact` is the critic's ``mdp.foot_contact`` or
    ``mdp.foot_contact_forces``.
    """

    def noisy(func: Callable[..., Any], bound: float, **params: Any) -> ObservationTermCfg:
        return ObservationTermCfg(func, noise=cfgs.UniformNoiseCfg(-bound, bound), **params)

    actor = {
        "base_lin_vel": noisy(mdp.base_lin_vel, 0.1),
        "base_ang_vel": noisy(mdp.base_ang_vel, 0.2),
        "projected_gravity": noisy(mdp.projected_gravity, 0.05),
        "command": ObservationTermCfg(mdp.generated_commands, command="velocity"),
        "gait": ObservationTermCfg(mdp.generated_commands, command="gait"),
        "joint_pos": noisy(mdp.joint_pos_rel, 0.01, joints=joints, biased=True),
        "joint_vel": noisy(mdp.joint_vel, joint_vel_noise, joints=joints),
        "last_action": ObservationTermCfg(mdp.last_action),
    }
    critic = copy.deepcopy(actor)
    for term in critic.values():
        term.noise = None
    del critic["joint_pos"].params["biased"]
    contacts = f"{feet}_contact"
    critic["foot_contact"] = ObservationTermCfg(foot_contact, sensors=contacts)
    critic["foot_air_time"] = ObservationTermCfg(mdp.foot_air_time, sensors=contacts)
    critic["foot_height"] = ObservationTermCfg(mdp.foot_height, sites=feet)
    return {"actor": actor, "critic": critic}


def velocity_randomization(
    joints: Names,
    foot_geoms: Names,
    trunk: str,
    *,
    mass_scale: Range,
    center_of_mass: tuple[Range, Range, Range],
    encoder_bias: float,
    after_steps: int = 0,
) -> dict[str, EventTermCfg]:
    """Domain randomization of the `joints` that move and more.

    It is drawn once before training, or at all resets after so many steps, so that a robot can
    learn to stand before it has to on any ground.

    Friction is drawn for the geoms that `foot_geoms` matches. The body `trunk` carries an unknown
    load: `mass_scale` bounds the factor on its mass, `center_of_mass` the shift along its axes, m.
    Encoders are wrong by up to `encoder_bias`, rad.
    """
    mode: Any = "reset" if after_steps else "startup"
    draw = functools.partial(EventTermCfg, mode=mode, after_steps=after_steps)
    bias = (-encoder_bias, encoder_bias)
    gains: dict[str, Any] = {"stiffness": (0.9, 1.1), "damping": (0.9, 1.1)}
    field = functools.partial(draw, mdp.randomize_field)
    friction = field(field="geom_friction", operation="abs", shared=True, geoms=foot_geoms)
    friction.params["ranges"] = {"sliding": (0.4, 1.2)}
    mass: dict[str, Any] = {"field": ("body_mass", "body_inertia"), "ranges": mass_scale}
    center = dict(zip("xyz", center_of_mass, strict=True))
    return {
        "friction": friction,
        "trunk_mass": field(bodies=trunk, **mass),
        "trunk_center_of_mass": field(
            field="body_ipos", bodies=trunk, ranges=center, operation="add"
        ),
        "encoder_bias": draw(mdp.randomize_encoder_bias, joints=joints, bias=bias),
        "gains": draw(mdp.randomize_actuator_gains, joints=joints, **gains),
    }


def velocity_resets(
    joints: Names, *, joint_position: float, rise: float, push: float, push_after_steps: int = 0
) -> dict[str, EventTermCfg]:
    """Resets, with joints up to `joint_position` from the keyframe's, rad, and pushes.

    The base begins `rise` above the keyframe's, m, so that no foot begins below the ground. A push
    changes the velocity by up to `push`, m/s and rad/s; there are none in the first
    `push_after_steps`.
    """
    home = (-joint_position, joint_position)
    pose = {"x": (-0.5, 0.5), "y": (-0.5, 0.5), "z": (rise, rise), "yaw": (-3.14, 3.14)}
    velocity = dict.fromkeys(("x", "y", "yaw"), (-push, push))
    reset = functools.partial(EventTermCfg, mode="reset")
    return {
        "reset_base": reset(mdp.reset_root_state_uniform, pose_range=pose),
        "reset_joints": reset(mdp.reset_joints_uniform, joints=joints, position=home),
        "push": EventTermCfg(
            mdp.push_by_setting_velocity,
            mode="interval",
            interval_range_s=(5.0, 10.0),
            after_steps=push_after_steps,
            velocity_range=velocity,
        ),
    }


def put_on_rough_ground(
    cfg: cfgs.TaskCfg, sub_terrains: dict[str, cfgs.SubTerrainCfg], *, base_height: float
) -> None:
    """Change a velocity task in place: terrain, height scans, and a curriculum over its levels.

    `base_height` is the height of the base above the ground that a scan shows as zero, m.
    """
    cfg.terrain = cfgs.TerrainCfg(sub_terrains=sub_terrains, num_levels=10, max_initial_level=2)
    for group, noise in (("actor", cfgs.UniformNoiseCfg(-0.02, 0.02)), ("critic", None)):
        scan = ObservationTermCfg(
            mdp.height_scan, noise=noise, clip=(-1.0, 1.0), offset=base_height
        )
        cfg.observation_terms()[group]["height_scan"] = scan
    curriculum = functools.partial(cfgs.CurriculumTermCfg, command="velocity")
    cfg.curricula = {
        "terrain_levels": curriculum(mdp.terrain_levels),
        "command_ranges": curriculum(mdp.command_ranges, start=0.5, steps=2400),
    }
    outside = cfgs.TerminationTermCfg(mdp.terrain_out_of_bounds, time_out=True)
    cfg.terminations["out_of_bounds"] = outside
