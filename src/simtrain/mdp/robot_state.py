"""A legged robot's state for several terms, in the words of `simtrain.mdp.observations`.

Values that are no views are computed once for all terms, see `BaseEnv.once`: read-only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from simtrain.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from simtrain.env.commands import CommandTerm
    from simtrain.env.env import Env
    from simtrain.env.names import Sensors

P = ParamSpec("P")
Owner = TypeVar("Owner")
T = TypeVar("T")
C = TypeVar("C", bound="CommandTerm")


def find_command(env: Env, name: str, kind: type[C]) -> C:
    """The command of that name; ConfigError if it is of another class."""
    term = env.commands.terms[name]
    if not isinstance(term, kind):
        raise ConfigError(f"the command {name!r} is no {kind.__name__}")
    return term


def computed_once(
    function: Callable[Concatenate[Owner, P], T],
) -> Callable[Concatenate[Owner, P], T]:
    """Compute a function of `Env` once for all terms that give it the same arguments.

    It may also be a method of a term that keeps its environment as `_env`.
    """

    @functools.wraps(function)
    def shared(owner: Owner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # Each term has a `Sensors` of its own, with the same names.
        names = (getattr(arg, "names", arg) for arg in (*args, *kwargs.values()))
        env: Any = getattr(owner, "_env", owner)
        value: T = env.once((function, owner, *names), lambda: function(owner, *args, **kwargs))
        return value

    return shared


def base_rotation(env: Env) -> Tensor:
    """Rotation matrices from the base's frame to the world. Shape: ``(num_envs, 3, 3)``."""
    return env.bind("xmat").view(env.num_envs, -1, 3, 3)[:, env.base.body]


def base_height(env: Env) -> Tensor:
    """Height of the base above the ground, m. Shape: ``(num_envs,)``."""
    return height_above_ground(env, env.bind("qpos")[:, env.base.position].unsqueeze(1))[:, 0]


def height_above_ground(env: Env, points: Tensor) -> Tensor:
    """Heights of `points`, ``(num_envs, n, 3)``, above the terrain, m. Shape: ``(num_envs, n)``."""
    if env.terrain is None:
        return points[..., 2]
    return points[..., 2] - env.terrain.height(points[..., :2])


def sensor_rows(env: Env, sensors: Sensors, record: Tensor | None = None) -> Tensor:
    """Readings of sensors of equal size. Shape: ``(num_envs, sensors, entries)``.

    With a `record` of `BaseEnv.substeps` at each physics step, ``(num_envs, decimation, ...)``.
    """
    data = env.bind("sensordata") if record is None else record
    rows: Tensor = data[..., sensors.data].unflatten(-1, (len(sensors), -1))
    return rows


@computed_once
def feet_touch(env: Env, sensors: Sensors) -> Tensor:
    """Which feet touch something. Boolean, shape: ``(num_envs, feet)``."""
    return sensor_rows(env, sensors)[:, :, 0] > 0.0


def touches(env: Env, sensors: Sensors, record: Tensor | None) -> tuple[Tensor, ...]:
    """`feet_touch` at each physics step of the `record`, see `BaseEnv.substeps`; None: the last."""
    if record is None:
        return (feet_touch(env, sensors),)
    return (sensor_rows(env, sensors, record)[..., 0] > 0.0).unbind(1)


def feet_forces(env: Env, sensors: Sensors) -> Tensor:
    """Net contact force on each foot in the world's frame, N. Shape: ``(num_envs, feet, 3)``."""
    return sensor_rows(env, sensors)[:, :, 1:4]


@computed_once
def feet_speed(env: Env, velocity_sensors: Sensors) -> Tensor:
    """Horizontal speeds of the feet, m/s. Shape: ``(num_envs, feet)``."""
    speed: Tensor = sensor_rows(env, velocity_sensors)[:, :, :2].norm(dim=2)
    return speed


@computed_once
def is_moving(env: Env, command: str, threshold: float) -> Tensor:
    """Whether the command is more than to stand still. Boolean, shape: ``(num_envs,)``.

    Its norm is above `threshold`, which every norm is if that is negative.
    """
    return env.command(command).square().sum(dim=1) > threshold * abs(threshold)
