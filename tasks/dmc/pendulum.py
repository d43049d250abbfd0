"""Pendulum: swing it up with a torque that is too small to lift it at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from _suite import PACKAGE, Starts, load, rotation, suite_task

from simtrain import ObservationTermCfg, TaskCfg, mdp, task

if TYPE_CHECKING:
    import mujoco
    from torch import Tensor

    from simtrain.env.env import Env


@task("dmc-pendulum-swingup", needs=PACKAGE)
def pendulum_swingup() -> TaskCfg:
    """Swing a pendulum up; only the last 8 degrees are rewarded."""
    return suite_task(
        pendulum,
        timestep=0.02,
        decimation=1,
        observations={
            "orientation": ObservationTermCfg(orientation),
            "velocity": ObservationTermCfg(mdp.joint_vel, joints="hinge"),
        },
        reward=is_up,
        starts=PendulumStarts,
    )


class PendulumStarts(Starts):
    """Any angle."""


def pendulum() -> mujoco.MjSpec:
    """The Suite's model."""
    return load("pendulum")


def orientation(env: Env) -> Tensor:
    """Cosine and sine of the angle to the vertical. Shape: ``(num_envs, 2)``."""
    return rotation(env, "pole")[:, 2::6].flip(1)


def is_up(env: Env) -> Tensor:
    """1 within 8 degrees of the vertical."""
    return (orientation(env)[:, 0] >= math.cos(math.radians(8.0))).float()
