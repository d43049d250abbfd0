"""Finger: two links that turn a free spinner, or turn it to a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _suite import PACKAGE, StartsWithoutContacts, load, make_movable, sensor, suite_task, touch

from simtrain import ObservationTermCfg, TaskCfg, mdp, task

if TYPE_CHECKING:
    from collections.abc import Callable

    import mujoco
    import numpy as np
    from torch import Tensor

    from simtrain.env.env import Env


@task("dmc-finger-spin", needs=PACKAGE)
def finger_spin() -> TaskCfg:
    """Keep a spinner turning fast."""
    return suite_task(
        free_spinner,
        timestep=0.01,
        decimation=2,
        observations=_observations(),
        reward=spins,
        starts=FingerStarts,
    )


@task("dmc-finger-turn_easy", needs=PACKAGE)
def finger_turn_easy() -> TaskCfg:
    """Turn a spinner until its tip is within 7 cm of a target."""
    return _turn(easy_target)


@task("dmc-finger-turn_hard", needs=PACKAGE)
def finger_turn_hard() -> TaskCfg:
    """Turn a spinner until its tip is within 3 cm of a target."""
    return _turn(spinner)


def _turn(model: Callable[[], mujoco.MjSpec]) -> TaskCfg:
    target = {
        "target_position": ObservationTermCfg(target_position),
        "dist_to_target": ObservationTermCfg(dist_to_target),
    }
    return suite_task(
        model,
        timestep=0.01,
        decimation=2,
        observations=_observations() | target,
        reward=at_target,
        starts=TurnStarts,
    )


def _observations() -> dict[str, ObservationTermCfg]:
    velocities = ("proximal_velocity", "distal_velocity", "hinge_velocity")
    return {
        "joints": ObservationTermCfg(mdp.builtin_sensor, sensors=("proximal", "distal")),
        "tip": ObservationTermCfg(tip_position),
        "velocity": ObservationTermCfg(mdp.builtin_sensor, sensors=velocities),
        "touch": ObservationTermCfg(touch, sensors=("touchtop", "touchbottom")),
    }


class FingerStarts(StartsWithoutContacts):
    """All joints are random and nothing touches."""


class TurnStarts(StartsWithoutContacts):
    """The same, with a target that the spinner's tip can reach."""

    def draw(self, model: mujoco.MjModel, data: mujoco.MjData, rng: np.random.Generator) -> None:
        """Draw the joints and the target."""
        import numpy as np

        super().draw(model, data, rng)
        angle, radius = rng.uniform(-np.pi, np.pi), model.geom("cap1").size.sum()
        hinge = data.joint("hinge").xanchor
        data.mocap_pos[0] = hinge + radius * np.array([np.sin(angle), 0.0, np.cos(angle)])


def spinner() -> mujoco.MjSpec:
    """The Suite's model, with a target for each environment."""
    return make_movable(load("finger"), "site")


def easy_target() -> mujoco.MjSpec:
    """The same with a large target."""
    spec = spinner()
    spec.site("target").size[0] = 0.07
    return spec


def free_spinner() -> mujoco.MjSpec:
    """The Suite's model for spinning: less damping, no target to see."""
    spec = load("finger")
    spec.joint("hinge").damping[0] = 0.03
    for name in ("target", "tip"):
        spec.site(name).rgba = (0.0, 0.0, 0.0, 0.0)
    return spec


def tip_position(env: Env) -> Tensor:
    """The tip from the spinner's hinge, x and z, m. Shape: ``(num_envs, 2)``."""
    return (sensor(env, "tip") - sensor(env, "spinner"))[:, ::2]


def target_position(env: Env) -> Tensor:
    """The target from the spinner's hinge, x and z, m. Shape: ``(num_envs, 2)``."""
    return (sensor(env, "target") - sensor(env, "spinner"))[:, ::2]


def dist_to_target(env: Env) -> Tensor:
    """Distance of the tip from the target's surface, m. Shape: ``(num_envs, 1)``."""
    away = target_position(env) - tip_position(env)
    return away.norm(dim=1, keepdim=True) - float(env.model.site("target").size[0])


def spins(env: Env) -> Tensor:
    """1 while the spinner turns at 15 rad/s or faster."""
    return (sensor(env, "hinge_velocity")[:, 0] <= -15.0).float()


def at_target(env: Env) -> Tensor:
    """1 while the tip is in the target."""
    return (dist_to_target(env)[:, 0] <= 0.0).float()
