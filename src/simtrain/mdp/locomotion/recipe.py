"""Whole tasks for legged robots: follow velocity commands, on flat or rough ground.

The figures of the Go1 and the G1, which learn in minutes, at the scale of any robot: lengths by the
height h of its hips, velocities by sqrt(g h), times by sqrt(h / g). Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from simtrain import mdp
from simtrain.algorithms.cfg import ActorCfg, CriticCfg, PpoCfg, SymmetryCfg
from simtrain.env.cfg import (
    MetricTermCfg,
    RewardTermCfg,
    SimCfg,
    SubTerrainCfg,
    TaskCfg,
    TerminationTermCfg,
)
from simtrain.env.control.cfg import JointPositionActionCfg, Names
from simtrain.env.reading import Mirror
from simtrain.mdp.locomotion.velocity import (
    Range,
    gait_clock,
    put_on_rough_ground,
    velocity_command,
    velocity_observations,
    velocity_randomization,
    velocity_resets,
)

CALM_STEPS = 7200
"""Control steps at first in which a biped is neither pushed nor randomized."""


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

    `joints` act; the others are held where the keyframe ``home`` has them. `feet` is the pattern of
    the feet's sites, whose contact sensors and velocity sensors end in ``_contact`` and
    ``_linvel``; `offsets` says by which part of a period each of them, in the model's order, is
    ahead. `bend` is what lifts a foot by `swing_height`, rad; `sole` is the height of a foot's
    site above the ground, m. Heights are those at home, m.
    """
    is_biped = len(offsets) == 2
    speed, period = math.sqrt(9.81 * hip_height), math.sqrt(hip_height / 9.81)
    contacts, velocities = f"{feet}_contact", f"{feet}_linvel"
    cfg = TaskCfg(
        model=model,
        keyframe="home",
        timestep=timestep,
        decimation=decimation,
        episode_length_s=20.0,
        actions={"joint_pos": JointPositionActionCfg(joints, scale=action_scale, reference="gait")},
        commands={
            "velocity": velocity_command(lin_vel_x, lin_vel_y, ang_vel_z),
            "gait": gait_clock(
                feet,
                offsets=tuple(offsets),
                frequency=frequency,
                stance=0.55,
                bend=bend,
                **({"command_threshold": -1.0} if is_biped else {"stopping_time": 3.0 * period}),
            ),
        },
        observations=velocity_observations(
            joints,
            feet,
            joint_vel_noise=0.5 if is_biped else 1.5,
            foot_contact=mdp.foot_contact_forces if is_biped else mdp.foot_contact,
        ),
        rewards=_rewards(
            joints, feet, contacts, velocities, bend, swing_height, sole, speed, period, hip_height
        ),
        terminations={
            "time_out": TerminationTermCfg(mdp.time_out, time_out=True),
            "fell_over": TerminationTermCfg(mdp.bad_orientation, limit_angle=0.9),
        },
        metrics={
            "lin_vel_error": MetricTermCfg(mdp.lin_vel_error, command="velocity"),
            "ang_vel_error": MetricTermCfg(mdp.ang_vel_error, command="velocity"),
        },
        events={
            **velocity_randomization(
                joints,
                foot_geoms=foot_geoms,
                trunk=base,
                mass_scale=(0.9, 1.1) if is_biped else (0.85, 1.25),
                center_of_mass=((-0.03 * hip_height, 0.03 * hip_height),) * 3,
                encoder_bias=0.015,
                after_steps=CALM_STEPS if is_biped else 0,
            ),
            **velocity_resets(
                joints,
                joint_position=0.05 if is_biped else 0.1,
                rise=0.02 * hip_height if is_biped else 0.07 * hip_height,
                push=(0.12 if is_biped else 0.3) * speed,
                push_after_steps=CALM_STEPS if is_biped else 0,
            ),
        },
        symmetry=symmetry,
        num_steps_per_env=24,
        num_envs_on_gpu=4096,
    )
    if is_biped:
        _as_biped(cfg, joints, bend, base_height, hip_height)
    else:
        cfg.num_envs, cfg.max_iterations = 512, 300
        cfg.ppo = PpoCfg(
            actor=ActorCfg(hidden_dims=(128, 128), init_std=0.5),
            critic=CriticCfg(hidden_dims=(128, 128)),
            num_learning_epochs=5,
            num_mini_batches=2,
            desired_kl=0.05,
            desired_kl_end=0.005,
            gamma=0.97,
            entropy_coef=0.005,
        )
    return cfg


def _rewards(
    joints: Names,
    feet: str,
    contacts: str,
    velocities: str,
    bend: dict[str, float],
    swing_height: float,
    sole: float,
    speed: float,
    period: float,
    hip_height: float,
) -> dict[str, RewardTermCfg]:
    """Terms that robots on any number of legs share; widths at the scale of the robot."""
    return {
        "track_lin_vel_xy": RewardTermCfg(
            mdp.track_lin_vel_xy_exp, weight=2.0, command="velocity", std=0.2 * speed
        ),
        "track_ang_vel_z": RewardTermCfg(
            mdp.track_ang_vel_z_exp, weight=1.0, command="velocity", std=0.085 / period
        ),
        "posture": RewardTermCfg(
            mdp.posture,
            weight=0.5,
            joints=joints,
            command="velocity",
            std_standing=0.1,
            std_moving={".*": 0.2} | dict.fromkeys(bend, 0.5),
        ),
        "lin_vel_z": RewardTermCfg(mdp.lin_vel_z_l2, weight=-2.8 / speed**2),
        "ang_vel_xy": RewardTermCfg(mdp.ang_vel_xy_l2, weight=-1.7 * period**2),
        "flat_orientation": RewardTermCfg(mdp.flat_orientation_l2, weight=-2.0),
        "joint_pos_limits": RewardTermCfg(mdp.joint_pos_limits, weight=-1.0, joints=joints),
        "action_rate": RewardTermCfg(mdp.action_rate_l2, weight=-0.02),
        "feet_contact": RewardTermCfg(
            mdp.feet_contact_by_phase, weight=0.5, sensors=contacts, gait="gait"
        ),
        "feet_height": RewardTermCfg(
            mdp.feet_height_by_phase,
            weight=1.0,
            sites=feet,
            gait="gait",
            swing_height=swing_height,
            std=0.35 * hip_height,
            sole=sole,
        ),
        "feet_slide": RewardTermCfg(
            mdp.feet_slide, weight=-0.17 / speed, sensors=contacts, velocity_sensors=velocities
        ),
        "self_collision": RewardTermCfg(
            mdp.self_collision_cost, weight=-0.1, sensors="self_collision"
        ),
    }


def _as_biped(
    cfg: TaskCfg, joints: Names, bend: dict[str, float], base_height: float, hip_height: float
) -> None:
    """What two legs need besides, in place: balance is learned while it steps."""
    rewards = cfg.rewards
    speed = math.sqrt(9.81 * hip_height)
    rewards["track_lin_vel_xy"].weight = 3.0
    rewards["track_lin_vel_xy"].params["std"] = 0.155 * speed
    rewards["track_ang_vel_z"].weight = 1.5
    rewards["track_ang_vel_z"].params["std"] = 0.13 / math.sqrt(hip_height / 9.81)
    rewards["feet_contact"].weight = 1.0
    rewards["feet_height"].weight = 2.0
    rewards["feet_height"].params["std"] = 0.075 * hip_height
    rewards["posture"].params["std_moving"] = {".*": 0.2} | dict.fromkeys(bend, 0.5)
    rewards["flat_orientation"].weight = -5.0
    rewards["action_rate"].weight = -0.01
    rewards["is_alive"] = RewardTermCfg(mdp.is_alive, weight=0.15)
    rewards["joint_pos"] = RewardTermCfg(
        mdp.track_reference_joint_pos_exp,
        weight=2.0,
        joints=tuple(bend),
        command="gait",
        std=0.5,
    )
    rewards["base_height"] = RewardTermCfg(
        mdp.base_height_l2, weight=-23.0 / hip_height**2, target_height=base_height
    )
    cfg.terminations["sank"] = TerminationTermCfg(
        mdp.root_height_below_minimum, minimum_height=base_height - 0.42 * hip_height
    )
    cfg.sim = SimCfg(iterations=6, ls_iterations=8)
    cfg.num_envs, cfg.max_iterations = 256, 800
    cfg.ppo = PpoCfg(
        actor=ActorCfg(hidden_dims=(256, 128), init_std=0.6),
        critic=CriticCfg(hidden_dims=(256, 128)),
        num_learning_epochs=5,
        num_mini_batches=1,
        desired_kl=0.03,
        desired_kl_end=0.005,
        gamma=0.98,
        lam=0.9,
        entropy_coef=0.001,
        symmetry=SymmetryCfg(augment=cfg.symmetry is not None),
    )


def rough_velocity_task(cfg: TaskCfg, *, hip_height: float) -> TaskCfg:
    """The task `cfg` of `velocity_task`, over ground whose steps are at the scale of the robot."""
    is_biped = len(cfg.commands["gait"].params["offsets"]) == 2
    h = hip_height
    slope: dict[str, Any] = {"slope": (0.0, 0.25 if is_biped else 0.4)}
    step = 0.15 * h if is_biped else 0.52 * h
    steps: dict[str, Any] = {
        "step_height": (0.03 * h, step),
        "step_width": round(max(0.3, 0.6 * h), 2),
    }
    sub_terrains = {
        "flat": SubTerrainCfg(mdp.flat, 2.0 if is_biped else 1.0),
        "slope_down": SubTerrainCfg(mdp.pyramid_slope, **slope),
        "slope_up": SubTerrainCfg(mdp.pyramid_slope, **slope, inverted=True),
        "stairs_down": SubTerrainCfg(mdp.pyramid_stairs, **steps),
        "stairs_up": SubTerrainCfg(mdp.pyramid_stairs, **steps, inverted=True),
        "boxes": SubTerrainCfg(mdp.random_boxes, box_height=(0.015 * h, 0.6 * step)),
        "waves": SubTerrainCfg(mdp.waves, amplitude=(0.015 * h, step)),
        "rough": SubTerrainCfg(mdp.random_rough, noise=(0.015 * h, 0.4 * step)),
    }
    base_height = cfg.rewards["base_height"].params["target_height"] if is_biped else h
    put_on_rough_ground(cfg, sub_terrains, base_height=base_height)
    cfg.rewards["lin_vel_z"].weight *= 0.5
    cfg.rewards["flat_orientation"].weight *= 0.25
    cfg.max_iterations = 3000 if is_biped else 500
    return cfg
