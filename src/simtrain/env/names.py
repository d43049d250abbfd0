"""From names and patterns in a configuration to indices into MuJoCo's arrays, once, at build time.

A pattern is a regular expression that must match a whole name. Entries come in the model's order.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mujoco
import torch

from simtrain.env.cfg import Names, TermCfg
from simtrain.errors import ConfigError, did_you_mean, flag
from simtrain.sim.engine import Index

_FREE, _BALL = mujoco.mjtJoint.mjJNT_FREE.value, mujoco.mjtJoint.mjJNT_BALL.value
_QPOS_SIZE = {_FREE: 7, _BALL: 4}  # slides and hinges have one entry
_QVEL_SIZE = {_FREE: 6, _BALL: 3}


@dataclass(frozen=True)
class Entities:
    """Some bodies, geoms, sites or actuators of the model."""

    names: tuple[str, ...]
    ids: Index
    """Where they stand in fields such as ``xpos``, ``geom_friction``, ``site_xpos`` or ``ctrl``."""

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Joints(Entities):
    """Some joints of the model; `ids` indexes fields such as ``jnt_range``."""

    qpos: Index
    """Their entries in ``qpos``."""
    qvel: Index
    """Their entries in ``qvel`` and other fields over degrees of freedom."""


@dataclass(frozen=True)
class Sensors(Entities):
    """Some sensors of the model."""

    data: Index
    """Their entries in ``sensordata``."""


@dataclass(frozen=True)
class Base:
    """The floating base of the robot: the body of the model's first free joint."""

    body: int
    """Its id, for fields such as ``xmat``."""
    position: slice
    """Its place in ``qpos``, m, in the world."""
    quaternion: slice
    """Its orientation in ``qpos``, w first."""
    linear: slice
    """Its velocity in ``qvel``, m/s, along the world's axes."""
    angular: slice
    """Its angular velocity in ``qvel``, rad/s, along its own axes."""


def find_base(model: mujoco.MjModel) -> Base:
    """The floating base; ConfigError if the model has no free joint."""
    for joint in range(model.njnt):
        if model.jnt_type[joint] == _FREE:
            q, v = int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint])
            return Base(
                body=int(model.jnt_bodyid[joint]),
                position=slice(q, q + 3),
                quaternion=slice(q + 3, q + 7),
                linear=slice(v, v + 3),
                angular=slice(v + 3, v + 6),
            )
    raise ConfigError("the task speaks of a floating base, but the model has no free joint")


def find_joints(model: mujoco.MjModel, names: Names, device: torch.device | str) -> Joints:
    """The joints that `names` match; ConfigError if a pattern matches none."""
    found, ids = _match("joint", names, model, model.njnt)
    qpos = _spans(ids, model.jnt_qposadr, [_QPOS_SIZE.get(int(model.jnt_type[i]), 1) for i in ids])
    qvel = _spans(ids, model.jnt_dofadr, [_QVEL_SIZE.get(int(model.jnt_type[i]), 1) for i in ids])
    return Joints(found, as_index(ids, device), as_index(qpos, device), as_index(qvel, device))


def find_sensors(model: mujoco.MjModel, names: Names, device: torch.device | str) -> Sensors:
    """The sensors that `names` match; ConfigError if a pattern matches none."""
    found, ids = _match("sensor", names, model, model.nsensor)
    data = _spans(ids, model.sensor_adr, [int(model.sensor_dim[i]) for i in ids])
    return Sensors(found, as_index(ids, device), as_index(data, device))


def _find_entities(
    kind: str, count: str, model: mujoco.MjModel, names: Names, device: torch.device | str
) -> Entities:
    found, ids = _match(kind, names, model, getattr(model, count))
    return Entities(found, as_index(ids, device))


# These take model, names and device, and raise ConfigError if a pattern matches nothing.
find_bodies = partial(_find_entities, "body", "nbody")
find_geoms = partial(_find_entities, "geom", "ngeom")
find_sites = partial(_find_entities, "site", "nsite")
find_actuators = partial(_find_entities, "actuator", "nu")
_FINDERS: dict[str, Callable[..., Entities]] = {
    "joints": find_joints,
    "bodies": find_bodies,
    "geoms": find_geoms,
    "sites": find_sites,
    "sensors": find_sensors,
    "actuators": find_actuators,
}


def resolve_params(
    params: dict[str, Any], model: mujoco.MjModel, device: torch.device | str
) -> dict[str, Any]:
    """A copy of `params` in which names and patterns are indices on `device`."""
    resolved = dict(params)
    for name, value in params.items():
        finder = _FINDERS.get(_kind_of(name))
        if finder is not None and value is not None:
            resolved[name] = finder(model, value, device)
    return resolved


def check_term(where: str, cfg: TermCfg, model: mujoco.MjModel, leading: int = 1) -> None:
    """Check a term's parameters against its function and its names against the model.

    `where` is the term's flag but for its last part; `leading` is the number of a function's
    arguments before its parameters (a class is made with the environment alone).

    Raises:
        ConfigError: an unknown or missing parameter, or a pattern that matches nothing.
    """
    check_parameters(where, cfg, 1 if inspect.isclass(cfg.func) else leading)
    for name, value in cfg.params.items():
        try:
            resolve_params({name: value}, model, "cpu")
        except ConfigError as error:
            raise ConfigError(f"{where}.{name.replace('_', '-')}: {error}") from error


def check_parameters(where: str, cfg: TermCfg, leading: int) -> None:
    """Raise ConfigError unless `cfg` gives what its function takes after `leading` arguments."""
    signature = inspect.signature(cfg.func)
    names = list(signature.parameters)[leading:]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    for name in cfg.params:
        if name not in names and not open_ended:
            raise ConfigError(
                f"{where}: {_name(cfg.func)} has no parameter {name!r}"
                f"{did_you_mean(name, names)}; it takes {', '.join(names) or 'none'}"
            )
    for name in names:
        parameter = signature.parameters[name]
        required = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if required and name not in cfg.params:
            raise ConfigError(f"{where}: {_name(cfg.func)} needs the parameter {name!r}")
        # A flag takes any number of values; one instead of two bounds would mean something else.
        default, value = parameter.default, cfg.params.get(name)
        is_range = isinstance(default, tuple) and all(isinstance(x, int | float) for x in default)
        if is_range and name in cfg.params and not _same_length(default, value):
            raise ConfigError(
                f"{where}.{name.replace('_', '-')} takes {len(default)} values such as {default}, "
                f"not {value}"
            )


def check_positive(cfg: object, names: Sequence[str], *where: str) -> None:
    """Raise ConfigError unless the fields `names` of `cfg`, whose flag is `where`, are positive."""
    for name in names:
        value = getattr(cfg, name)
        if not value > 0:
            raise ConfigError(f"{flag(*where, name)} is {value}; it must be greater than 0")


def patterns_of(kind: str, cfg: TermCfg) -> list[str]:
    """The names and patterns of one kind, such as ``geoms``, among a term's parameters."""
    found: list[str] = []
    for name, value in cfg.params.items():
        if _kind_of(name) == kind and value is not None:
            found += _patterns(value)
    return found


def match_values(
    values: float | dict[str, float], names: Sequence[str], default: float, what: str
) -> list[float]:
    """One value for each name, from a number or from a mapping of patterns to numbers."""
    if not isinstance(values, dict):
        return [float(values)] * len(names)
    result = [default] * len(names)
    for pattern, value in values.items():
        hits = _hits(pattern, names, f"{what}: {pattern!r} is not a regular expression")
        if not hits:
            raise ConfigError(f"{what}: no joint matches {pattern!r}; there are {_listed(names)}")
        for i in hits:
            result[i] = float(value)
    return result


def _same_length(default: tuple[Any, ...], value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == len(default)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


def _kind_of(parameter: str) -> str:
    """What a parameter of that name holds, if it holds names: ``foot_geoms`` are geoms."""
    return parameter.rsplit("_", 1)[-1]


def _patterns(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _match(
    kind: str, names: Names, model: mujoco.MjModel, count: int
) -> tuple[tuple[str, ...], list[int]]:
    everything = [getattr(model, kind)(i).name for i in range(count)]
    chosen: set[int] = set()
    for pattern in _patterns(names):
        mistake = f"{pattern!r} is not a regular expression for {kind} names"
        hits = _hits(pattern, everything, mistake)
        if not hits:
            raise ConfigError(
                f"no {kind} matches {pattern!r}{did_you_mean(pattern, everything)}; "
                f"the model has {_listed(everything)}"
            )
        chosen.update(hits)
    ids = sorted(chosen)
    return tuple(everything[i] for i in ids), ids


def _hits(pattern: str, names: Sequence[str], mistake: str) -> list[int]:
    """Places of the names that `pattern` matches; ConfigError if it is not a pattern."""
    try:
        return [i for i, name in enumerate(names) if re.fullmatch(pattern, name)]
    except re.error as error:
        raise ConfigError(f"{mistake}: {error}") from error


def _listed(names: Sequence[str]) -> str:
    return ", ".join(name or "(unnamed)" for name in names) or "none"


def _spans(ids: list[int], starts: Sequence[int], sizes: list[int]) -> list[int]:
    return [int(starts[i]) + k for i, size in zip(ids, sizes, strict=True) for k in range(size)]


def as_index(ids: list[int], device: torch.device | str) -> Index:
    """An index of `ids`: a slice where they are consecutive, which makes views, not copies."""
    if ids and ids == list(range(ids[0], ids[0] + len(ids))):
        return slice(ids[0], ids[0] + len(ids))
    return torch.tensor(ids, dtype=torch.long, device=device)
