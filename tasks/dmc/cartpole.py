"""Cart-pole of the Suite: balance a pole on a cart, or swing it up first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from _suite import PACKAGE, Starts, load, rotation, small_control, suite_task

from simtrain import ObservationTermCfg, TaskCfg, mdp, task

if TYPE_CHECKING:
    from collections.abc import Callable

    import mujoco
    import numpy as np
    from torch import Tensor

    from simtrain.env.env import Env


@task("dmc-cartpole-balance", needs=PACKAGE)
def cartpole_balance() -> TaskCfg:
    """Keep a pole upright while the cart stays near the middle."""
    return _task(smooth, Upright)


@task("dmc-cartpole-swingup", needs=PACKAGE)
def cartpole_swingup() -> TaskCfg:
    """Swing a pole up and keep it upright in the middle."""
    return _task(smooth, Hanging)


@task("dmc-cartpole-swingup_sparse", needs=PACKAGE)
def cartpole_swingup_sparse() -> TaskCfg:
    """Swing a pole up; only an upright pole in the middle is rewarded."""
    return _task(sparse, Hanging)


def _task(reward: Callable[..., Tensor], starts: type[Starts]) -> TaskCfg:
    return suite_task(
        cartpole,
        timestep=0.01,
        decimation=1,
        observations={
            "cart": ObservationTermCfg(mdp.joint_pos, joints="slider"),
            "pole": ObservationTermCfg(pole),
            "velocity": ObservationTermCfg(mdp.joint_vel, joints=".*"),
        },
        reward=reward,
        starts=starts,
    )


class Upright(Starts):
    """The pole is nearly upright, the cart near the middle."""

    def draw(self, model: mujoco.MjModel, data: mujoco.MjData, rng: np.random.Generator) -> None:
        """Draw positions and small velocities."""
        data.qpos[:] = rng.uniform(-0.1, 0.1), rng.uniform(-0.034, 0.034)
        data.qvel[:] = rng.normal(scale=0.01, size=2)


class Hanging(Starts):
    """The pole hangs, the cart is in the middle."""

    def draw(self, model: mujoco.MjModel, data: mujoco.MjData, rng: np.random.Generator) -> None:
        """Draw small offsets and velocities."""
        data.qpos[:] = rng.normal(scale=0.01, size=2)
        data.qpos[1] += math.pi
        data.qvel[:] = rng.normal(scale=0.01, size=2)


def cartpole() -> mujoco.MjSpec:
    """The Suite's model."""
    return load("cartpole")


def pole(env: Env) -> Tensor:
    """Cosine and sine of the pole's angle to the vertical. Shape: ``(num_envs, 2)``."""
    return rotation(env, "pole_1")[:, 2::6].flip(1)


def smooth(env: Env) -> Tensor:
    """Upright x centered x small control x small velocity."""
    upright = (pole(env)[:, 0] + 1.0) / 2.0
    centered = (mdp.tolerance(env.bind("qpos")[:, 0], margin=2.0) + 1.0) / 2.0
    slow = (mdp.tolerance(env.bind("qvel")[:, 1], margin=5.0) + 1.0) / 2.0
    return upright * small_control(env) * slow * centered


def sparse(env: Env) -> Tensor:
    """1 for an upright pole in the middle."""
    near = env.bind("qpos")[:, 0].abs() <= 0.25
    return (near & (pole(env)[:, 0] >= 0.995)).float()
