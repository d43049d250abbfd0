"""Reacher: an arm of two links. Touch a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _suite import PACKAGE, Starts, load, make_movable, suite_task

from simtrain import ObservationTermCfg, TaskCfg, mdp, task

if TYPE_CHECKING:
    from collections.abc import Callable

    import mujoco
    import numpy as np
    from torch import Tensor

    from simtrain.env.env import Env


@task("dmc-reacher-easy", needs=PACKAGE)
def reacher_easy() -> TaskCfg:
    """Reach a target of 5 cm."""
    return _task(reacher)


@task("dmc-reacher-hard", needs=PACKAGE)
def reacher_hard() -> TaskCfg:
    """Reach a target of 1.5 cm."""
    return _task(small_target)


def _task(model: Callable[[], mujoco.MjSpec]) -> TaskCfg:
    return suite_task(
        model,
        timestep=0.02,
        decimation=1,
        observations={
            "position": ObservationTermCfg(mdp.joint_pos, joints=".*"),
            "to_target": ObservationTermCfg(to_target),
            "velocity": ObservationTermCfg(mdp.joint_vel, joints=".*"),
        },
        reward=touches,
        starts=ReacherStarts,
    )


class ReacherStarts(Starts):
    """Any angles, and a target within reach."""

    def draw(self, model: mujoco.MjModel, data: mujoco.MjData, rng: np.random.Generator) -> None:
        """Draw joints and target."""
        import numpy as np

        super().draw(model, data, rng)
        angle, radius = rng.uniform(0.0, 2.0 * np.pi), rng.uniform(0.05, 0.2)
        data.mocap_pos[0, :2] = radius * np.sin(angle), radius * np.cos(angle)


def reacher() -> mujoco.MjSpec:
    """The Suite's model, with a target for each environment."""
    return make_movable(load("reacher"), "geom")


def small_target() -> mujoco.MjSpec:
    """The same with a small target."""
    spec = reacher()
    spec.geom("target").size[0] = 0.015
    return spec


def to_target(env: Env) -> Tensor:
    """From the finger to the target, x and y, m. Shape: ``(num_envs, 2)``."""
    places = env.bind("geom_xpos")
    target, finger = env.model.geom("target").id, env.model.geom("finger").id
    return (places[:, target] - places[:, finger])[:, :2]


def touches(env: Env) -> Tensor:
    """1 while finger and target overlap."""
    radii = float(sum(env.model.geom(name).size[0] for name in ("target", "finger")))
    return (to_target(env).norm(dim=1) <= radii).float()
