"""Whole tasks for legged robots: follow velocity commands, on flat or rough ground.

It scales the settings of the Go1 and the G1, which learn in minutes, to any robot: with h the
height of its hips, lengths scale with h, velocities with sqrt(g h), times with sqrt(h / g). Imports
no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from simtrain import mdp
from simtrain.algorithms.cfg import ActorCfg, CriticCfg, PpoCfg, SymmetryCfg
from simtrain.env.cfg import (
    CommandTermCfg,
    CurriculumTermCfg,
    EventTermCfg,
    MetricTermCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SimCfg,
    SubTerrainCfg,
    TaskCfg,
    TerminationTermCfg,
    TerrainCfg,
    UniformNoiseCfg,
)
from simtrain.env.control.cfg import JointPositionActionCfg, Names
from simtrain.env.reading import Mirror
from simtrain.mdp.locomotion.velocity import (
    Range,
    gait_clock,
    rounded,
    velocity_observations,
    velocity_randomization,
)

T = TypeVar("T")


def velocity_task(
    model: Path | Callable[[], Any],
    *,
    joints: Names,
    feet: str,
    foot_geoms: Names,
    base: str,
    hip_height: float,
    base_height: float,
    offsets: Sequence[float],
    bend: dict[str, float],
    action_scale: float | dict[str, float],
    lin_vel_x: Range,
    lin_vel_y: Range,
    ang_vel_z: Range,
    frequency: float,
    swing_height: float,
    sole: float = 0.0,
    timestep: float = 0.01,
    decimation: int = 2,
    symmetry: Mirror | None = None,
) -> TaskCfg:
    """A task for a robot on two, four or more legs.

    The policy controls `joints`; the others are held at their positions in the keyframe ``home``.
    `feet` is the pattern of the feet's sites, whose contact sensors and velocity sensors end in
    ``_contact`` and ``_linvel``. `offsets` are the fractions of a period by which each foot, in the
    model's order, is ahead. `bend`, rad, lifts a foot by `swing_height`, m; `sole` is the height of
    a foot's site above the ground, m. Heights are those in the home pose, m.
    """
    is_biped = len(offsets) == 2

    def by_legs(many: T, two: T) -> T:
        """A setting of robots on four or more legs, from the Go1, or on two, from the G1."""
        return two if is_biped else many

    speed, period = math.sqrt(9.81 * hip_height), math.sqrt(hip_height / 9.81)
    rise, shift = (rounded(part * hip_height) for part in by_legs((0.074, 0.106), (0.02, 0.03)))
    push = rounded(by_legs(0.3, 0.117) * speed)
    joint_position = by_legs(0.1, 0.05)
    calm_steps = by_legs(2400, 7200)  # at first without pushes and randomization
    hidden_dims = by_legs((128, 128), (256, 128))
    contacts, moving = f"{feet}_contact", {"command": "velocity"}
    reward = RewardTermCfg
    cfg = TaskCfg(
        model=model,
        keyframe="home",
        timestep=timestep,
        decimation=decimation,
        episode_length_s=20.0,
        actions={
            "joint_pos": JointPositionActionCfg(
                joints,
                scale=action_scale,
                reference="gait",
                # Up to a control step late, the same for a whole episode, as observations are.
                delay_max_lag=decimation,
                delay_hold_prob=1.0,
            )
        },
        commands={
            # A quarter keep a heading, a fifth walk straight ahead, and some stand.
            "velocity": CommandTermCfg(
                mdp.UniformVelocityCommand,
                (4.0, 8.0),
                lin_vel_x=lin_vel_x,
                lin_vel_y=lin_vel_y,
                ang_vel_z=ang_vel_z,
                rel_heading_envs=0.25,
                rel_forward_envs=0.2,
                rel_standing_envs=by_legs(0.1, 0.2),
            ),
            "gait": gait_clock(
                feet,
                offsets=tuple(offsets),
                frequency=frequency,
                stance=0.55,
                bend=bend,
                stopping_time=rounded(2.95 * period),
            ),
        },
        observations=velocity_observations(
            joints,
            feet,
            joint_vel_noise=by_legs(1.5, 0.5),
            foot_contact=mdp.foot_contact_forces if is_biped else mdp.foot_contact,
            history_length=by_legs(3, 5),
        ),
        rewards={
            "track_lin_vel_xy": reward(
                mdp.track_lin_vel_xy_exp,
                by_legs(2.0, 3.0),
                std=rounded(by_legs(0.21, 0.155) * speed),
                **moving,
            ),
            "track_ang_vel_z": reward(
                mdp.track_ang_vel_z_exp,
                by_legs(1.0, 2.0),
                std=rounded(by_legs(0.085, 0.13) / period),
                **moving,
            ),
            "posture": reward(
                mdp.posture,
                0.5,
                joints=joints,
                std_standing=0.1,
                std_moving={".*": 0.2} | dict.fromkeys(bend, 0.5),
                **moving,
            ),
            "flat_orientation": reward(mdp.flat_orientation_l2, by_legs(-2.0, -5.0)),
            "lin_vel_z": reward(mdp.lin_vel_z_l2, rounded(by_legs(-2.8, -3.3) / speed**2)),
            "ang_vel_xy": reward(mdp.ang_vel_xy_l2, rounded(by_legs(-1.73, -0.73) * period**2)),
            "joint_pos_limits": reward(mdp.joint_pos_limits, -1.0, joints=joints),
            "action_rate": reward(mdp.action_rate_l2, by_legs(-0.02, -0.01)),
            "joint_vel_at_rest": reward(
                mdp.joint_vel_at_rest_l2, -0.02, joints=joints, gait="gait"
            ),
            "feet_contact": reward(
                mdp.feet_contact_by_phase, by_legs(0.5, 1.0), sensors=contacts, gait="gait"
            ),
            "feet_height": reward(
                mdp.feet_height_by_phase,
                by_legs(1.0, 2.0),
                sites=feet,
                swing_height=swing_height,
                std=rounded(by_legs(0.355, 0.075) * hip_height),
                sole=sole,
                gait="gait",
            ),
            "feet_slide": reward(
                mdp.feet_slide,
                rounded(by_legs(-0.167, -0.51) / speed),
                sensors=contacts,
                velocity_sensors=f"{feet}_linvel",
            ),
            "self_collision": reward(mdp.self_collision_cost, -0.1, sensors="self_collision"),
        },
        terminations={
            "time_out": TerminationTermCfg(mdp.time_out, time_out=True),
            "fell_over": TerminationTermCfg(mdp.bad_orientation, limit_angle=by_legs(1.0, 0.9)),
        },
        metrics={
            "lin_vel_error": MetricTermCfg(mdp.lin_vel_error, **moving),
            "ang_vel_error": MetricTermCfg(mdp.ang_vel_error, **moving),
        },
        events={
            **velocity_randomization(
                joints,
                foot_geoms=foot_geoms,
                trunk=base,
                mass_scale=by_legs((0.85, 1.25), (0.9, 1.1)),
                center_of_mass=((-shift, shift),) * 3,
                encoder_bias=by_legs(0.02, 0.015),
                after_steps=calm_steps,
            ),
            "reset_base": EventTermCfg(
                mdp.reset_root_state_uniform,
                mode="reset",
                pose_range={
                    "x": (-0.5, 0.5),
                    "y": (-0.5, 0.5),
                    "z": (rise, rise),  # so that no foot begins below the ground
                    "yaw": (-3.14, 3.14),
                },
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
                after_steps=calm_steps,
                velocity_range=dict.fromkeys(("x", "y", "yaw"), (-push, push)),
            ),
        },
        symmetry=symmetry,
        sim=by_legs(SimCfg(), SimCfg(iterations=6, ls_iterations=8)),
        num_envs=by_legs(512, 256),
        num_envs_on_gpu=4096,
        max_iterations=by_legs(300, 1600),
        ppo=PpoCfg(
            actor=ActorCfg(hidden_dims=hidden_dims, init_std=by_legs(0.5, 0.6)),
            critic=CriticCfg(hidden_dims=hidden_dims),
            num_mini_batches=by_legs(2, 1),
            desired_kl=by_legs(0.05, 0.03),
            desired_kl_end=0.005,
            # Rewards are discounted by this fraction for each sqrt(h / g).
            gamma=1.0 - rounded(0.257 * timestep * decimation / period),
            lam=by_legs(0.95, 0.9),
            entropy_coef=by_legs(0.005, 0.001),
            symmetry=SymmetryCfg(augment=is_biped and symmetry is not None),
        ),
    )
    if is_biped:
        _balance(cfg, bend, base_height, hip_height)
    return cfg


def _balance(cfg: TaskCfg, bend: dict[str, float], base_height: float, hip_height: float) -> None:
    """Add terms for two legs, in place: balance is learned while the robot steps.

    A robot that can stand would learn to stand still, which is nearly as good at first. So it is
    held upright until it steps, and a step pays by how much its knees bend.
    """
    most = max(abs(angle) for angle in bend.values())
    # Hips and ankles do more than bend at higher speeds.
    knees = tuple(joints for joints, angle in bend.items() if abs(angle) > 0.9 * most)
    cfg.rewards |= {
        "is_alive": RewardTermCfg(mdp.is_alive, 0.15),
        "joint_pos": RewardTermCfg(
            mdp.track_reference_joint_pos_exp,
            2.0,
            joints=knees,
            command="gait",
            std=rounded(0.4 * most),
        ),
        "base_height": RewardTermCfg(
            mdp.base_height_l2, rounded(-22.6 / hip_height**2), target_height=base_height
        ),
    }
    cfg.terminations["sank"] = TerminationTermCfg(
        mdp.root_height_below_minimum, minimum_height=rounded(base_height - 0.43 * hip_height)
    )
    cfg.events["hold_upright"] = EventTermCfg(
        mdp.hold_upright, mode="step", part=0.5, rate=5.0, steps=3000
    )
    cfg.curricula["standing"] = CurriculumTermCfg(
        mdp.standing_envs,
        command="velocity",
        share=0.4,
        after_steps=cfg.events["push"].after_steps,
    )


def rough_velocity_task(cfg: TaskCfg, *, hip_height: float) -> TaskCfg:
    """The task `cfg` of `velocity_task` on rough ground, whose steps are scaled to the robot."""
    is_biped = "base_height" in cfg.rewards
    low, high = (part * hip_height for part in ((0.03, 0.15) if is_biped else (0.07, 0.53)))
    slope: dict[str, Any] = {"slope": (0.0, 0.25 if is_biped else 0.4)}
    steps: dict[str, Any] = {
        "step_height": (rounded(low), rounded(high)),
        "step_width": max(0.3, rounded(0.6 * hip_height)),
    }

    def part(share: float) -> Range:
        return rounded(0.5 * low), rounded(share * high)

    sub_terrains = {
        "flat": SubTerrainCfg(mdp.flat),
        "slope_down": SubTerrainCfg(mdp.pyramid_slope, **slope),
        "slope_up": SubTerrainCfg(mdp.pyramid_slope, **slope, inverted=True),
        "stairs_down": SubTerrainCfg(mdp.pyramid_stairs, **steps),
        "stairs_up": SubTerrainCfg(mdp.pyramid_stairs, **steps, inverted=True),
        "boxes": SubTerrainCfg(mdp.random_boxes, box_height=part(0.64)),
        "waves": SubTerrainCfg(mdp.waves, amplitude=part(1.0)),
        "rough": SubTerrainCfg(mdp.random_rough, noise=part(0.35)),
    }
    for name in ("flat",) if is_biped else ("stairs_down", "stairs_up"):
        sub_terrains[name].proportion = 2.0
    cfg.terrain = TerrainCfg(sub_terrains=sub_terrains, num_levels=10, max_initial_level=2)
    height = cfg.rewards["base_height"].params["target_height"] if is_biped else hip_height
    for group, noise in (("actor", UniformNoiseCfg(-0.02, 0.02)), ("critic", None)):
        scan = ObservationTermCfg(mdp.height_scan, noise=noise, clip=(-1.0, 1.0), offset=height)
        cfg.observation_terms()[group]["height_scan"] = scan
    cfg.curricula = {
        "terrain_levels": CurriculumTermCfg(mdp.terrain_levels, command="velocity"),
        "command_ranges": CurriculumTermCfg(
            mdp.command_ranges, command="velocity", start=0.5, steps=2400
        ),
    }
    outside = TerminationTermCfg(mdp.terrain_out_of_bounds, time_out=True)
    cfg.terminations["out_of_bounds"] = outside
    # A little more than what `terrain_levels` needs, so that levels change every few seconds.
    cfg.terminations["walked"] = TerminationTermCfg(
        mdp.commanded_distance,
        time_out=True,
        command="velocity",
        distance=0.55 * cfg.terrain.tile_size,
    )
    cfg.rewards["lin_vel_z"].weight *= 0.5
    cfg.rewards["flat_orientation"].weight *= 0.25
    cfg.max_iterations = 3000 if is_biped else 500
    return cfg
