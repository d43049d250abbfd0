"""Humanoid: 21 joints. Stand up, walk or run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _suite import (
    PACKAGE,
    StartsWithoutContacts,
    in_frame,
    load,
    position,
    reaches,
    rotation,
    sensor,
    small_control,
    suite_task,
)

from simtrain import ObservationTermCfg, TaskCfg, mdp, task

if TYPE_CHECKING:
    import mujoco
    from torch import Tensor

    from simtrain.env.env import Env

LIMBS = ("left_hand", "left_foot", "right_hand", "right_foot")


@task("dmc-humanoid-stand", needs=PACKAGE)
def humanoid_stand() -> TaskCfg:
    """Stand up and stay where it is."""
    return _task(0.0)


@task("dmc-humanoid-walk", needs=PACKAGE)
def humanoid_walk() -> TaskCfg:
    """Walk at 1 m/s."""
    return _task(1.0)


@task("dmc-humanoid-run", needs=PACKAGE)
def humanoid_run() -> TaskCfg:
    """Run at 10 m/s."""
    return _task(10.0)


def _task(speed: float) -> TaskCfg:
    return suite_task(
        humanoid,
        timestep=0.005,
        decimation=5,
        observations={
            "joint_angles": ObservationTermCfg(mdp.joint_pos, joints="(?!root).*"),
            "head_height": ObservationTermCfg(head_height),
            "extremities": ObservationTermCfg(extremities),
            "torso_vertical": ObservationTermCfg(torso_vertical),
            "com_velocity": ObservationTermCfg(mdp.builtin_sensor, sensors="torso_subtreelinvel"),
            "velocity": ObservationTermCfg(mdp.joint_vel, joints=".*"),
        },
        reward=moves,
        starts=HumanoidStarts,
        speed=speed,
    )


class HumanoidStarts(StartsWithoutContacts):
    """Any pose in the air that touches nothing."""


def humanoid() -> mujoco.MjSpec:
    """The Suite's model."""
    return load("humanoid")


def head_height(env: Env) -> Tensor:
    """Height of the head, m. Shape: ``(num_envs, 1)``."""
    return position(env, "head")[:, 2:]


def extremities(env: Env) -> Tensor:
    """Hands and feet from the torso, in its frame, m. Shape: ``(num_envs, 12)``."""
    import torch

    torso = position(env, "torso")
    away = torch.stack([position(env, limb) - torso for limb in LIMBS], dim=1)
    return in_frame(away, rotation(env, "torso")).flatten(1)


def torso_vertical(env: Env) -> Tensor:
    """The vertical in the torso's frame. Shape: ``(num_envs, 3)``."""
    return rotation(env, "torso")[:, 6:]


def moves(env: Env, speed: float) -> Tensor:
    """Standing x upright x small control x moving at `speed`, or not at all if that is 0."""
    standing = mdp.tolerance(head_height(env)[:, 0], margin=0.35, bounds=(1.4, float("inf")))
    upright = reaches(torso_vertical(env)[:, 2], 0.9, margin=1.9, value_at_margin=0.0)
    velocity = sensor(env, "torso_subtreelinvel")[:, :2]
    if speed == 0.0:
        moving = mdp.tolerance(velocity, margin=2.0).mean(dim=1)
    else:
        moving = reaches(velocity.norm(dim=1), speed, margin=speed, value_at_margin=0.0)
        moving = (5.0 * moving + 1.0) / 6.0
    return small_control(env) * standing * upright * moving
