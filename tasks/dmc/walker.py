"""Walker: a planar body on two legs. Stand, walk or run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _suite import PACKAGE, Starts, load, position, reaches, sensor, suite_task, upright

from simtrain import ObservationTermCfg, TaskCfg, mdp, task

if TYPE_CHECKING:
    import mujoco
    from torch import Tensor

    from simtrain.env.env import Env


@task("dmc-walker-stand", needs=PACKAGE)
def walker_stand() -> TaskCfg:
    """Stand up and stay up."""
    return _task(0.0)


@task("dmc-walker-walk", needs=PACKAGE)
def walker_walk() -> TaskCfg:
    """Walk at 1 m/s."""
    return _task(1.0)


@task("dmc-walker-run", needs=PACKAGE)
def walker_run() -> TaskCfg:
    """Run at 8 m/s."""
    return _task(8.0)


def _task(speed: float) -> TaskCfg:
    return suite_task(
        walker,
        timestep=0.0025,
        decimation=10,
        observations={
            "orientations": ObservationTermCfg(orientations),
            "height": ObservationTermCfg(height),
            "velocity": ObservationTermCfg(mdp.joint_vel, joints=".*"),
        },
        reward=moves,
        starts=WalkerStarts,
        speed=speed,
    )


class WalkerStarts(Starts):
    """Any angles, at the model's height."""


def walker() -> mujoco.MjSpec:
    """The Suite's model."""
    return load("walker")


def orientations(env: Env) -> Tensor:
    """Cosines and sines of the bodies' pitch. Shape: ``(num_envs, 14)``."""
    return env.bind("xmat").view(env.num_envs, -1, 9)[:, 1:, 0:3:2].flatten(1)


def height(env: Env) -> Tensor:
    """Height of the torso, m. Shape: ``(num_envs, 1)``."""
    return position(env, "torso")[:, 2:]


def moves(env: Env, speed: float) -> Tensor:
    """Standing and upright, x forward speed if that is wanted."""
    above = float("inf")
    standing = mdp.tolerance(height(env)[:, 0], margin=0.6, bounds=(1.2, above))
    stands = (3.0 * standing + (upright(env)[:, 0] + 1.0) / 2.0) / 4.0
    if speed == 0.0:
        return stands
    velocity = sensor(env, "torso_subtreelinvel")[:, 0]
    forward = reaches(velocity, speed, margin=speed / 2.0, value_at_margin=0.5)
    return stands * (5.0 * forward + 1.0) / 6.0
