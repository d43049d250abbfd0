"""Fish: a tail and two fins in water. Stay upright, or swim to a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _suite import (
    PACKAGE,
    Starts,
    in_frame,
    load,
    make_movable,
    random_quaternion,
    suite_task,
    upright,
)

from simtrain import ObservationTermCfg, TaskCfg, mdp, task

if TYPE_CHECKING:
    import mujoco
    import numpy as np
    from torch import Tensor

    from simtrain.env.env import Env


@task("dmc-fish-upright", needs=PACKAGE)
def fish_upright() -> TaskCfg:
    """Turn upright and stay so."""
    return suite_task(
        fish,
        timestep=0.004,
        decimation=10,
        observations=_observations(),
        reward=is_upright,
        starts=FishStarts,
    )


@task("dmc-fish-swim", needs=PACKAGE)
def fish_swim() -> TaskCfg:
    """Swim to a target."""
    observations = _observations()
    velocity = observations.pop("velocity")
    target = {"target": ObservationTermCfg(mouth_to_target), "velocity": velocity}
    return suite_task(
        fish,
        timestep=0.004,
        decimation=10,
        observations=observations | target,
        reward=swims,
        starts=SwimStarts,
    )


def _observations() -> dict[str, ObservationTermCfg]:
    return {
        "joint_angles": ObservationTermCfg(mdp.joint_pos, joints="(?!root).*"),
        "upright": ObservationTermCfg(upright),
        "velocity": ObservationTermCfg(mdp.joint_vel, joints=".*"),
    }


class FishStarts(Starts):
    """Any orientation and small angles."""

    def draw(self, model: mujoco.MjModel, data: mujoco.MjData, rng: np.random.Generator) -> None:
        """Draw the orientation and the joints."""
        data.qpos[3:7] = random_quaternion(rng)
        data.qpos[7:] = rng.uniform(-0.2, 0.2, size=model.nq - 7)


class SwimStarts(FishStarts):
    """The same, with a target somewhere in the tank."""

    def draw(self, model: mujoco.MjModel, data: mujoco.MjData, rng: np.random.Generator) -> None:
        """Draw the orientation, the joints and the target."""
        super().draw(model, data, rng)
        data.mocap_pos[0] = rng.uniform((-0.4, -0.4, 0.1), (0.4, 0.4, 0.3))


def fish() -> mujoco.MjSpec:
    """The Suite's model, with a target for each environment."""
    return make_movable(load("fish"), "geom")


def mouth_to_target(env: Env) -> Tensor:
    """From the mouth to the target in the mouth's frame, m. Shape: ``(num_envs, 3)``."""
    mouth, target = env.model.geom("mouth").id, env.model.geom("target").id
    places, matrices = env.bind("geom_xpos"), env.bind("geom_xmat").view(env.num_envs, -1, 9)
    away = places[:, target] - places[:, mouth]
    return in_frame(away.unsqueeze(1), matrices[:, mouth])[:, 0]


def is_upright(env: Env) -> Tensor:
    """1 upright, less when tilted."""
    return mdp.tolerance(upright(env)[:, 0] - 1.0, margin=1.0)


def swims(env: Env) -> Tensor:
    """Mostly how near the mouth is to the target, and a little how upright."""
    radii = float(sum(env.model.geom(name).size[0] for name in ("mouth", "target")))
    distance = mouth_to_target(env).norm(dim=1)
    near = mdp.tolerance(distance, margin=2.0 * radii, bounds=(0.0, radii))
    return (7.0 * near + 0.5 * (upright(env)[:, 0] + 1.0)) / 8.0
