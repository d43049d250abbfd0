"""Hopper: a planar body on one leg. Stand, or hop forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _suite import PACKAGE, Starts, load, reaches, sensor, small_control, suite_task, touch

from simtrain import ObservationTermCfg, TaskCfg, mdp, task

if TYPE_CHECKING:
    from collections.abc import Callable

    import mujoco
    from torch import Tensor

    from simtrain.env.env import Env


@task("dmc-hopper-stand", needs=PACKAGE)
def hopper_stand() -> TaskCfg:
    """Stand up on one leg."""
    return _task(stands_quietly)


@task("dmc-hopper-hop", needs=PACKAGE)
def hopper_hop() -> TaskCfg:
    """Hop at 2 m/s."""
    return _task(hops)


def _task(reward: Callable[..., Tensor]) -> TaskCfg:
    return suite_task(
        hopper,
        timestep=0.005,
        decimation=4,
        observations={
            "position": ObservationTermCfg(mdp.joint_pos, joints="(?!rootx).*"),
            "velocity": ObservationTermCfg(mdp.joint_vel, joints=".*"),
            "touch": ObservationTermCfg(touch, sensors=("touch_toe", "touch_heel")),
        },
        reward=reward,
        starts=HopperStarts,
    )


class HopperStarts(Starts):
    """Any angles, at the model's height."""


def hopper() -> mujoco.MjSpec:
    """The Suite's model."""
    return load("hopper")


def stands(env: Env) -> Tensor:
    """1 while the torso is 0.6 to 2 m above the foot."""
    torso, foot = env.model.body("torso").id, env.model.body("foot").id
    heights = env.bind("xipos")[:, :, 2]
    height = heights[:, torso] - heights[:, foot]
    return ((height >= 0.6) & (height <= 2.0)).float()


def stands_quietly(env: Env) -> Tensor:
    """Standing x small control."""
    return stands(env) * small_control(env)


def hops(env: Env) -> Tensor:
    """Standing x forward speed, 1 from 2 m/s on."""
    speed = sensor(env, "torso_subtreelinvel")[:, 0]
    return stands(env) * reaches(speed, 2.0, margin=1.0, value_at_margin=0.5)
