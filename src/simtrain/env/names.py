"""From names and patterns in a configuration to indices into MuJoCo's arrays, once, at build time.

A pattern is a regular expression that must match a whole name. Entries come in the model's order.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

import mujoco
import numpy as np
import torch

from simtrain.env.cfg import TermCfg
from simtrain.env.control.cfg import InitialState, Names
from simtrain.errors import ConfigError, choices, config_errors_of, did_you_mean
from simtrain.limits import Limits, check_value
from simtrain.sim.engine import Index

FREE = mujoco.mjtJoint.mjJNT_FREE.value
ONE_DEGREE = (mujoco.mjtJoint.mjJNT_HINGE.value, mujoco.mjtJoint.mjJNT_SLIDE.value)
"""The types of joints with one degree of freedom."""
KINDS = {"bodies": "body"} | {
    f"{kind}s": kind for kind in ("geom", "site", "pair", "tendon", "actuator", "sensor")
}
"""Last word of a parameter's name -> kind of the elements; without joints and places."""
_COUNTS = {"keyframe": "nkey", "joint": "njnt", "actuator": "nu"}  # of others n<kind>
_ONE_PLACE = ("place", "frame", "origin")
Bounds = Annotated[tuple[float, float], Limits(ordered=True)]
"""Annotation of a term's parameter whose numbers are bounds of draws."""


@dataclass(frozen=True)
class Entities:
    """Some bodies, geoms, sites and so on; `ids` indexes fields such as ``xpos`` or ``ctrl``."""

    names: tuple[str, ...]
    ids: Index

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Joints(Entities):
    """Some joints, and their entries in ``qpos`` and, over degrees of freedom, ``qvel``."""

    qpos: Index
    qvel: Index


@dataclass(frozen=True)
class Sensors(Entities):
    """Some sensors; `data` are their entries in ``sensordata``."""

    data: Index


@dataclass(frozen=True)
class Places(Entities):
    """Some bodies or some sites; `ids` indexes ``xpos`` or, if `are_sites`, ``site_xpos``."""

    are_sites: bool


@dataclass(frozen=True)
class Base:
    """A body that moves freely, such as the floating base of a robot.

    `body` is its id, for fields such as ``xmat``. `position`, m, in the world, and `quaternion`, w
    first, are entries of ``qpos``, together `pose`; `linear` velocity, m/s, along the world's axes,
    and `angular` velocity, rad/s, along the body's own, are entries of ``qvel``, together `twist`.
    """

    body: int
    position: slice
    quaternion: slice
    pose: slice
    linear: slice
    angular: slice
    twist: slice


def resolve_params(
    params: dict[str, Any], model: mujoco.MjModel, device: torch.device | str
) -> dict[str, Any]:
    """A copy of `params` in which names and patterns are indices on `device`."""
    return {
        name: value if value is None else _resolved(_kind_of(name), value, model, device)
        for name, value in params.items()
    }


def _resolved(kind: str, value: Any, model: mujoco.MjModel, device: torch.device | str) -> Any:
    """The indices of the elements of a `kind` such as ``joints``; `value` itself if it is none."""
    if kind in ("places", *_ONE_PLACE):
        places = find_places(model, value, device)
        if kind in _ONE_PLACE and len(places) != 1:
            raise ConfigError(f"{value!r} matches {', '.join(places.names)}; name one body or site")
        return places
    if kind == "joints":
        return find_joints(model, value, device)
    if kind not in KINDS:
        return value
    names, ids = match_names(model, KINDS[kind], value)
    if kind != "sensors":
        return Entities(names, as_index(ids, device))
    data = _entries(ids, model.sensor_adr, model.nsensordata)
    return Sensors(names, as_index(ids, device), as_index(data, device))


def find_joints(model: mujoco.MjModel, names: Names, device: torch.device | str) -> Joints:
    """The joints that `names` match; ConfigError if a pattern matches none."""
    matches, ids = match_names(model, "joint", names)
    qpos = _entries(ids, model.jnt_qposadr, model.nq)
    qvel = _entries(ids, model.jnt_dofadr, model.nv)
    return Joints(matches, *(as_index(i, device) for i in (ids, qpos, qvel)))


def find_places(model: mujoco.MjModel, names: Names, device: torch.device | str) -> Places:
    """The bodies or, if `names` match none, the sites; ConfigError if they match neither."""
    places = {kind: names_of(model, kind) for kind in ("body", "site")}
    for kind, of_kind in places.items():
        if any(_hits(pattern, of_kind) for pattern in _patterns(names)):
            matches, ids = match_names(model, kind, names)
            return Places(matches, as_index(ids, device), kind == "site")
    first, known = _patterns(names)[0], [*places["body"], *places["site"]]
    raise ConfigError(f"no body or site matches {first!r}{choices(first, known)}")


def names_of(model: mujoco.MjModel, kind: str) -> list[str]:
    """The names of all joints, bodies, keyframes or so; `kind` is singular."""
    count = getattr(model, _COUNTS.get(kind, f"n{kind}"))
    return [getattr(model, kind)(i).name for i in range(count)]


def match_names(
    model: mujoco.MjModel, kind: str, names: Names
) -> tuple[tuple[str, ...], list[int]]:
    """Names and ids that `names` match; ConfigError if a pattern matches nothing."""
    everything = names_of(model, kind)
    hits = (_hits(pattern, everything, f"no {kind} matches") for pattern in _patterns(names))
    ids = sorted({i for of_pattern in hits for i in of_pattern})
    return tuple(everything[i] for i in ids), ids


def match_values(
    values: float | dict[str, float], names: Sequence[str], default: float, what: str
) -> list[float]:
    """One value for each name, from a number or from a mapping of patterns to numbers."""
    if not isinstance(values, dict):
        return [float(values)] * len(names)
    result = [default] * len(names)
    with config_errors_of(what):
        for pattern, value in values.items():
            for i in _hits(pattern, names, "nothing is called"):
                result[i] = float(value)
    return result


def as_index(ids: list[int], device: torch.device | str) -> Index:
    """An index of `ids`: a slice where they are consecutive, which makes views, not copies."""
    if ids and ids == list(range(ids[0], ids[0] + len(ids))):
        return slice(ids[0], ids[0] + len(ids))
    return torch.tensor(ids, dtype=torch.long, device=device)


def find_keyframe(model: mujoco.MjModel, name: str | None) -> int | None:
    """The id of the keyframe that episodes start from; None is MuJoCo's default state."""
    return None if name is None else find_id(model, "keyframe", name)


def find_id(model: mujoco.MjModel, kind: str, name: str) -> int:
    """The id of the one element of that name; ConfigError if there is none."""
    if name not in (names := names_of(model, kind)):
        raise ConfigError(f"the model has no {kind} {name!r}{choices(name, filter(None, names))}")
    return names.index(name)


def initial_state(model: mujoco.MjModel, keyframe: str | None) -> InitialState:
    """The state of the keyframe of that name, or MuJoCo's default for None."""
    number = find_keyframe(model, keyframe)
    if number is None:
        return InitialState(np.array(model.qpos0), np.zeros(model.nu))
    return InitialState(np.array(model.key_qpos[number]), np.array(model.key_ctrl[number]))


def find_base(model: mujoco.MjModel) -> Base:
    """The floating base: the free body that carries actuators, or the first one if none does.

    ConfigError if there is none, or only objects beside a robot that is fixed.
    """
    free = [int(i) for i in np.flatnonzero(model.jnt_type == FREE)]
    if not free:
        raise ConfigError("a floating base is needed, but the model has no free joint")
    roots = {int(model.body_rootid[body]) for body in _actuated(model)}
    bases = [i for i in free if not roots or int(model.jnt_bodyid[i]) in roots]
    if not bases:
        names = ", ".join(model.body(int(model.jnt_bodyid[i])).name for i in free)
        text = f"a floating base is needed, but the robot is fixed; {names} moves freely"
        raise ConfigError(f"{text} (bodies=... names it)")
    return _free_body(model, bases[0])


def find_free_bodies(model: mujoco.MjModel, bodies: Entities | None) -> list[Base]:
    """The entries of bodies that move freely, or of the base; ConfigError for one that does not."""
    if bodies is None:
        return [find_base(model)]
    joints = {name: int(model.body(name).jntadr[0]) for name in bodies.names}
    for name, joint in joints.items():
        if joint < 0 or model.jnt_type[joint] != FREE:
            raise ConfigError(f"the body {name!r} has no free joint")
    return [_free_body(model, joint) for joint in joints.values()]


def _free_body(model: mujoco.MjModel, joint: int) -> Base:
    q, v = int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint])
    of_qpos = (slice(q, q + 3), slice(q + 3, q + 7), slice(q, q + 7))
    of_qvel = (slice(v, v + 3), slice(v + 3, v + 6), slice(v, v + 6))
    return Base(int(model.jnt_bodyid[joint]), *of_qpos, *of_qvel)


def _actuated(model: mujoco.MjModel) -> list[int]:
    """Bodies that actuators act on."""
    data = mujoco.MjData(model)
    mujoco.mj_fwdPosition(model, data)
    is_adhesion = model.actuator_trntype == mujoco.mjtTrn.mjTRN_BODY.value
    # The rows of `moment` lie one after the other.
    dofs = data.moment_colind[: data.moment_rownnz.sum()]
    moved = model.dof_bodyid[dofs[np.repeat(~is_adhesion, data.moment_rownnz)]]
    return [*moved.tolist(), *model.actuator_trnid[is_adhesion, 0].tolist()]


def check_term(
    where: str, cfg: TermCfg, model: mujoco.MjModel, step_dt: float, leading: int = 1
) -> None:
    """Raise ConfigError for an unknown or missing parameter or a pattern that matches nothing.

    `where` is the term's flag but for its last part; `leading` is the number of a function's
    arguments before its parameters (a class is made with the environment alone). A class may have
    a static method ``check(model, step_dt, **params)`` that raises ConfigError for parameters that
    do not fit the model or control steps of `step_dt`, s; names are resolved before. A function
    has one by `checked_by`.
    """
    check_parameters(where, cfg, 1 if inspect.isclass(cfg.func) else leading)
    resolved: dict[str, Any] = {}
    for name, value in cfg.params.items():
        with config_errors_of(f"{where}.{name.replace('_', '-')}"):
            resolved |= resolve_params({name: value}, model, "cpu")
    if check := getattr(cfg.func, "check", None):
        with config_errors_of(where):
            check(model, step_dt, **resolved)


def check_parameters(where: str, cfg: TermCfg, leading: int) -> None:
    """Raise ConfigError unless `cfg` gives what its function takes after `leading` arguments."""
    function = getattr(cfg.func, "__qualname__", repr(cfg.func))
    parameters = list(inspect.signature(cfg.func).parameters.values())[leading:]
    names = [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    for name in cfg.params:
        if name not in names and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            takes = f"{did_you_mean(name, names)}; it takes {', '.join(names) or 'none'}"
            raise ConfigError(f"{where}: {function} has no parameter {name!r}{takes}")
    for p in (p for p in parameters if p.name in names):
        if p.name not in cfg.params:
            if p.default is p.empty:
                raise ConfigError(f"{where}: {function} needs the parameter {p.name!r}")
            continue
        value, hint = cfg.params[p.name], _annotation(cfg.func, p)
        if _has_limits(hint):
            any_number = Limits(-math.inf, math.inf)  # where the type has no limits of its own
            check_value(value, hint, where.removeprefix("--"), p.name, limits=any_number)


def _annotation(function: Any, parameter: inspect.Parameter) -> Any:
    """A parameter's type; None if it has names that only type checkers know."""
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    made_by = function.__init__ if inspect.isclass(function) else inspect.unwrap(function)
    try:
        return eval(parameter.annotation, getattr(made_by, "__globals__", {}), {"Bounds": Bounds})
    except (NameError, TypeError, AttributeError):
        return None


def _has_limits(hint: Any) -> bool:
    """Whether a type says more than a kind of value, or how many there are, somewhere in it."""
    origin, parts = get_origin(hint), get_args(hint)
    own = any(isinstance(note, Limits) for note in getattr(hint, "__metadata__", ()))
    has_size = origin is tuple and ... not in parts
    return own or has_size or origin is Literal or any(map(_has_limits, parts))


def patterns_of(kind: str, cfg: TermCfg) -> list[str]:
    """The names and patterns of one kind, such as ``geoms``, among a term's parameters."""
    given = [value for name, value in cfg.params.items() if _kind_of(name) == kind]
    return [pattern for value in given if value is not None for pattern in _patterns(value)]


def _kind_of(parameter: str) -> str:
    """Last word of a parameter's name, the kind of its elements: ``geoms`` of ``foot_geoms``."""
    return parameter.rsplit("_", 1)[-1]


def _patterns(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _hits(pattern: str, names: Sequence[str], none_is: str | None = None) -> list[int]:
    """Places of the names that `pattern` matches; ConfigError if it is not a pattern.

    With the beginning of a message, `none_is`, also ConfigError if it matches none.
    """
    try:
        hits = [i for i, name in enumerate(names) if re.fullmatch(pattern, name)]
    except re.error as error:
        raise ConfigError(f"{pattern!r} is not a regular expression: {error}") from error
    if not hits and none_is is not None:
        raise ConfigError(f"{none_is} {pattern!r}{choices(pattern, names)}")
    return hits


def _entries(ids: list[int], starts: Sequence[int], total: int) -> list[int]:
    """The entries of elements of which each begins at its start and ends where the next begins."""
    ends = [*starts[1:], total]
    return [int(entry) for i in ids for entry in range(starts[i], ends[i])]
