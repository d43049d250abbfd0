"""From names and patterns in a configuration to indices into MuJoCo's arrays, once, at build time.

A pattern is a regular expression that must match a whole name. Entries come in the model's order.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import mujoco
import numpy as np
import torch

from simtrain.env.control.cfg import InitialState
from simtrain.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from simtrain.env.cfg import TermCfg
    from simtrain.env.control.cfg import Names
    from simtrain.sim.engine import Index

T = TypeVar("T")
_FREE, _BALL = mujoco.mjtJoint.mjJNT_FREE.value, mujoco.mjtJoint.mjJNT_BALL.value
_QPOS_SIZE = {_FREE: 7, _BALL: 4}  # slides and hinges have one entry
_QVEL_SIZE = {_FREE: 6, _BALL: 3}
Bounds = Annotated[tuple[float, float], "lower and upper"]
"""Annotation of a term's parameter whose numbers bound what is drawn."""


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
    first, are entries of ``qpos``; `linear` velocity, m/s, along the world's axes, and `angular`
    velocity, rad/s, along the body's own, are entries of ``qvel``.
    """

    body: int
    position: slice
    quaternion: slice
    linear: slice
    angular: slice


def find_keyframe(model: mujoco.MjModel, name: str | None) -> int | None:
    """The id of the keyframe that episodes start from; None is MuJoCo's default state."""
    if name is None:
        return None
    names = [model.key(i).name for i in range(model.nkey)]
    if name not in names:
        meant, known = did_you_mean(name, names), ", ".join(names) or "none"
        raise ConfigError(f"the model has no keyframe {name!r}{meant}; it has {known}")
    return names.index(name)


def initial_state(model: mujoco.MjModel, keyframe: int | None) -> InitialState:
    """The keyframe's state, or MuJoCo's default for None."""
    if keyframe is None:
        return InitialState(np.array(model.qpos0), np.zeros(model.nu))
    return InitialState(np.array(model.key_qpos[keyframe]), np.array(model.key_ctrl[keyframe]))


def find_base(model: mujoco.MjModel) -> Base:
    """The floating base: the free body that carries actuators, or the first one if none does.

    ConfigError if there is none, or only objects beside a robot that is fixed.
    """
    free = [int(i) for i in np.flatnonzero(model.jnt_type == _FREE)]
    if not free:
        raise ConfigError("a floating base is needed, but the model has no free joint")
    roots = {int(model.body_rootid[body]) for body in _actuated(model)}
    bases = [i for i in free if not roots or int(model.jnt_bodyid[i]) in roots]
    if not bases:
        names = ", ".join(model.body(int(model.jnt_bodyid[i])).name for i in free)
        text = f"a floating base is needed, but the robot is fixed; {names} moves freely"
        raise ConfigError(f"{text} (bodies=... names it)")
    return _free_body(model, bases[0])


def find_free_bodies(model: mujoco.MjModel, bodies: Entities) -> list[Base]:
    """The entries of bodies that move freely; ConfigError for one that does not."""
    found = []
    for name in bodies.names:
        first = int(model.body(name).jntadr[0])
        if first < 0 or model.jnt_type[first] != _FREE:
            raise ConfigError(f"the body {name!r} has no free joint")
        found.append(_free_body(model, first))
    return found


def _free_body(model: mujoco.MjModel, joint: int) -> Base:
    q, v = int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint])
    places = (slice(q, q + 3), slice(q + 3, q + 7), slice(v, v + 3), slice(v + 3, v + 6))
    return Base(int(model.jnt_bodyid[joint]), *places)


def _actuated(model: mujoco.MjModel) -> Iterator[int]:
    """Bodies that actuators act on."""
    bodies = {
        mujoco.mjtTrn.mjTRN_JOINT.value: model.jnt_bodyid,
        mujoco.mjtTrn.mjTRN_JOINTINPARENT.value: model.jnt_bodyid,
        mujoco.mjtTrn.mjTRN_SITE.value: model.site_bodyid,
        mujoco.mjtTrn.mjTRN_BODY.value: np.arange(model.nbody),
    }
    wraps = {
        mujoco.mjtWrap.mjWRAP_JOINT.value: model.jnt_bodyid,
        mujoco.mjtWrap.mjWRAP_SITE.value: model.site_bodyid,
    }
    for kind, target in zip(model.actuator_trntype, model.actuator_trnid[:, 0], strict=True):
        if kind in bodies:
            yield int(bodies[kind][target])
        elif kind == mujoco.mjtTrn.mjTRN_TENDON.value:
            first = model.tendon_adr[target]
            for wrap in range(first, first + model.tendon_num[target]):
                if model.wrap_type[wrap] in wraps:
                    yield int(wraps[model.wrap_type[wrap]][model.wrap_objid[wrap]])


def find_joints(model: mujoco.MjModel, names: Names, device: torch.device | str) -> Joints:
    """The joints that `names` match; ConfigError if a pattern matches none."""
    found, ids = _match("joint", "njnt", model, names)
    kinds = [int(model.jnt_type[i]) for i in ids]
    qpos = _spans(ids, model.jnt_qposadr, [_QPOS_SIZE.get(kind, 1) for kind in kinds])
    qvel = _spans(ids, model.jnt_dofadr, [_QVEL_SIZE.get(kind, 1) for kind in kinds])
    return Joints(found, *(as_index(i, device) for i in (ids, qpos, qvel)))


def find_sensors(model: mujoco.MjModel, names: Names, device: torch.device | str) -> Sensors:
    """The sensors that `names` match; ConfigError if a pattern matches none."""
    found, ids = _match("sensor", "nsensor", model, names)
    data = _spans(ids, model.sensor_adr, [int(model.sensor_dim[i]) for i in ids])
    return Sensors(found, as_index(ids, device), as_index(data, device))


def find_places(model: mujoco.MjModel, names: Names, device: torch.device | str) -> Places:
    """The bodies or, if `names` match none, the sites; ConfigError if they match neither."""
    bodies, sites = ([get(i).name for i in range(n)] for get, n in
                     ((model.body, model.nbody), (model.site, model.nsite)))  # fmt: skip
    patterns = _patterns(names)
    are_sites = not any(_hits(p, bodies, f"{p!r} is not a pattern of names") for p in patterns)
    if are_sites and not any(_hits(p, sites, f"{p!r} is no pattern") for p in patterns):
        there = f"the model has the bodies {_listed(bodies)} and the sites {_listed(sites)}"
        meant = did_you_mean(patterns[0], [*bodies, *sites])
        raise ConfigError(f"no body or site matches {patterns[0]!r}{meant}; {there}")
    found, ids = _match(*(("site", "nsite") if are_sites else ("body", "nbody")), model, names)
    return Places(found, as_index(ids, device), are_sites)


def find_frame(model: mujoco.MjModel, names: Names, device: torch.device | str) -> Places:
    """The one body or site; ConfigError if `names` match none or several."""
    places = find_places(model, names, device)
    if len(places) != 1:
        raise ConfigError(f"{names!r} matches {', '.join(places.names)}; name one body or site")
    return places


def _find(
    kind: str, count: str, model: mujoco.MjModel, names: Names, device: torch.device | str
) -> Entities:
    found, ids = _match(kind, count, model, names)
    return Entities(found, as_index(ids, device))


# These take model, names and device, and raise ConfigError if a pattern matches nothing.
find_bodies, find_geoms = partial(_find, "body", "nbody"), partial(_find, "geom", "ngeom")
find_sites, find_actuators = partial(_find, "site", "nsite"), partial(_find, "actuator", "nu")
find_tendons, find_pairs = partial(_find, "tendon", "ntendon"), partial(_find, "pair", "npair")
_FINDERS: dict[str, Callable[..., Entities]] = {
    "joints": find_joints,
    "bodies": find_bodies,
    "geoms": find_geoms,
    "sites": find_sites,
    "tendons": find_tendons,
    "sensors": find_sensors,
    "actuators": find_actuators,
    "pairs": find_pairs,
    "places": find_places,
    "place": find_frame,
    "frame": find_frame,
    "origin": find_frame,
}


def resolve_params(
    params: dict[str, Any], model: mujoco.MjModel, device: torch.device | str
) -> dict[str, Any]:
    """A copy of `params` in which names and patterns are indices on `device`."""
    return {
        name: value if value is None or finder is None else finder(model, value, device)
        for name, value in params.items()
        for finder in [_FINDERS.get(_kind_of(name))]
    }


def check_term(
    where: str, cfg: TermCfg, model: mujoco.MjModel, step_dt: float, leading: int = 1
) -> None:
    """Raise ConfigError for an unknown or missing parameter or a pattern that matches nothing.

    `where` is the term's flag but for its last part; `leading` is the number of a function's
    arguments before its parameters (a class is made with the environment alone). A class may have
    a static method ``check(model, step_dt, **params)`` that raises ConfigError for parameters that
    the model does not bear, or control steps of `step_dt`, s, do not; with names resolved. A
    function is `checked_by` one.
    """
    check_parameters(where, cfg, 1 if inspect.isclass(cfg.func) else leading)
    resolved: dict[str, Any] = {}
    for name, value in cfg.params.items():
        try:
            resolved |= resolve_params({name: value}, model, "cpu")
        except ConfigError as error:
            raise ConfigError(f"{where}.{name.replace('_', '-')}: {error}") from error
    if check := getattr(cfg.func, "check", None):
        try:
            check(model, step_dt, **resolved)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error


def no_command(name: str, existing: Collection[str]) -> str:
    """That there is no command `name`, and which exist."""
    known = ", ".join(existing) or "none"
    return f"there is no command {name!r}{did_you_mean(name, existing)}; there are {known}"


def checked_by(check: Callable[..., None]) -> Callable[[T], T]:
    """Say what checks the parameters of a term's function, see `check_term`."""

    def decorate(function: T) -> T:
        function.check = check  # type: ignore[attr-defined]
        return function

    return decorate


def check_parameters(where: str, cfg: TermCfg, leading: int) -> None:
    """Raise ConfigError unless `cfg` gives what its function takes after `leading` arguments."""
    function = getattr(cfg.func, "__qualname__", repr(cfg.func))
    parameters = inspect.signature(cfg.func).parameters
    names = list(parameters)[leading:]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in cfg.params:
        if name not in names and not open_ended:
            takes = f"{did_you_mean(name, names)}; it takes {', '.join(names) or 'none'}"
            raise ConfigError(f"{where}: {function} has no parameter {name!r}{takes}")
    for name in names:
        p, default = parameters[name], parameters[name].default
        if name not in cfg.params:
            if default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
                raise ConfigError(f"{where}: {function} needs the parameter {name!r}")
            continue
        # A flag takes any number of values; one instead of two bounds would mean something else.
        value, is_drawn = cfg.params[name], p.annotation in (Bounds, "Bounds")
        example = (0.5, 1.5) if is_drawn and default is p.empty else default
        is_range = isinstance(example, tuple) and all(isinstance(x, int | float) for x in example)
        where_of = f"{where}.{name.replace('_', '-')}"
        if is_range and not (isinstance(value, tuple | list) and len(value) == len(example)):
            raise ConfigError(
                f"{where_of} takes {len(example)} values such as {example}, not {value}"
            )
        if is_drawn and not value[0] <= value[1]:
            raise ConfigError(f"{where_of} is {value[0]} {value[1]}; the lower bound comes first")


def patterns_of(kind: str, cfg: TermCfg) -> list[str]:
    """The names and patterns of one kind, such as ``geoms``, among a term's parameters."""
    given = [value for name, value in cfg.params.items() if _kind_of(name) == kind]
    return [pattern for value in given if value is not None for pattern in _patterns(value)]


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
            known = f"{did_you_mean(pattern, names)}; there are {_listed(names)}"
            raise ConfigError(f"{what}: nothing is called {pattern!r}{known}")
        for i in hits:
            result[i] = float(value)
    return result


def _kind_of(parameter: str) -> str:
    """What a parameter of that name holds, if it holds names: ``foot_geoms`` are geoms."""
    return parameter.rsplit("_", 1)[-1]


def _patterns(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _match(
    kind: str, count: str, model: mujoco.MjModel, names: Names
) -> tuple[tuple[str, ...], list[int]]:
    everything = [getattr(model, kind)(i).name for i in range(getattr(model, count))]
    chosen: set[int] = set()
    for pattern in _patterns(names):
        mistake = f"{pattern!r} is not a regular expression for {kind} names"
        hits = _hits(pattern, everything, mistake)
        if not hits:
            known = f"{did_you_mean(pattern, everything)}; the model has {_listed(everything)}"
            raise ConfigError(f"no {kind} matches {pattern!r}{known}")
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
