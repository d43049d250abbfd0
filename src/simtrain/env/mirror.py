"""How a robot's observations and actions are reflected about the plane of its symmetry.

Base and world are reflected together, so that a vector changes alike in either's frame. An entry of
a reflected term is an entry of the term, maybe with its sign turned: a place and a sign. A rule
says which, given by `mirrored_as` or by the term's configuration:

- ``"vector"`` and ``"pseudo_vector"``, such as an angular velocity: three entries;
- ``"each"``: an entry for each of the joints, sites, sensors, ... that the term is given, and
  ``"each_vector"``: a vector for each; ``"relative_joints"``: positions relative to the start;
- ``"planar_velocity"``: [v_x, v_y, w_z]; ``"command"`` and ``"actions"``: as those of the task are;
- ``"grid"``: points around the base, row by row along x, by the parameters size and resolution;
- 1.0 or -1.0: one entry with this sign, and a tuple of rules: one after the other;
- a function of a `Reflection` and the term's parameters: a place and a sign for each entry.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import mujoco
import numpy as np
import torch

from simtrain.env.actions import Actions, JointAction
from simtrain.env.cfg import ActionTerm, Mirror, MirrorRule, ObservationTermCfg, TaskCfg
from simtrain.env.env import Env
from simtrain.env.model import find_keyframe, initial_state
from simtrain.env.names import Entities, Joints, find_base, resolve_params
from simtrain.errors import ConfigError, did_you_mean, flag
from simtrain.mirror_maps import MirrorMap, MirrorMaps

T = TypeVar("T")
E = TypeVar("E", bound=Entities)
Params = Mapping[str, Any]
Places = list[tuple[int, float]]
_FREE, _HINGE = mujoco.mjtJoint.mjJNT_FREE.value, mujoco.mjtJoint.mjJNT_HINGE.value
_SLIDE = mujoco.mjtJoint.mjJNT_SLIDE.value
# How far mirror images may differ: the cosine between axes, m, and m or rad.
_COSINE, _DISTANCE, _OFFSET = 0.99, 0.01, 1e-3


def mirrored_as(rule: MirrorRule) -> Callable[[T], T]:
    """Say how the value of a term's function or class, or of a command's class, is reflected."""

    def told(function: T) -> T:
        function.mirror = rule  # type: ignore[attr-defined]
        return function

    return told


def mirror_maps(env: Env, device: torch.device) -> MirrorMaps:
    """How `env`'s observations and actions are reflected; ConfigError where it is not known."""
    reflection, groups = Reflection(env.cfg, env.model), {}
    for group, terms in reflection.observations.items():
        for name, places in terms.items():
            slot = env.observations.groups[group].slices[name]
            if (size := slot.stop - slot.start) != len(places):
                where = flag("env", "observations", group, name)
                raise ConfigError(f"{where} has {size} entries, and its mirror rule {len(places)}")
        groups[group] = _as_map(_joined(terms.values()), device)
    return MirrorMaps(groups, _as_map(reflection.actions, device))


class Reflection:
    """A task's `Mirror` on its model: what becomes of vectors, joints and all that has a name."""

    def __init__(self, cfg: TaskCfg, model: mujoco.MjModel) -> None:
        """Raises ConfigError where it is not known how a term of the task is reflected."""
        if cfg.symmetry is None:
            raise ConfigError("--ppo.symmetry needs a task that is symmetric: symmetry=Mirror()")
        self.cfg, self._model, self._pairs = cfg, model, _patterns(cfg.symmetry)
        self.vector = [-1.0 if axis == cfg.symmetry.normal else 1.0 for axis in "xyz"]
        """What becomes of a vector: factors of its x, y and z; minus these of a pseudo-vector's."""
        self._start = initial_state(model, find_keyframe(model, cfg.keyframe))
        data = mujoco.MjData(model)
        mujoco.mj_kinematics(model, data)
        origin, rotation = np.zeros(3), np.eye(3)
        if (model.jnt_type == _FREE).any():
            base = find_base(model).body
            origin, rotation = data.xpos[base], data.xmat[base].reshape(3, 3)
        self._anchors, self._axes = (data.xanchor - origin) @ rotation, data.xaxis @ rotation
        terms = Actions(cfg.actions, model, self._start, "cpu").terms
        self.actions = _joined([self._action(name, term) for name, term in terms.items()])
        """The places and signs of all actions."""
        self.observations = {
            group: {name: self._observation(f"{group}.{name}", term) for name, term in of.items()}
            for group, of in cfg.observations.items()
        }
        """The places and signs of all terms by group and name, their history included."""

    def places(self, rule: MirrorRule, params: Params) -> Places:
        """Places and signs by a rule, for a term with the resolved `params`."""
        if isinstance(rule, tuple):
            return _joined([self.places(part, params) for part in rule])
        if isinstance(rule, str):
            if rule not in _RULES:
                known = f"{did_you_mean(rule, _RULES)}; there are {', '.join(_RULES)}"
                raise ConfigError(f"there is no mirror rule {rule!r}{known}")
            rule = _RULES[rule]
        if callable(rule):
            return rule(self, params)
        if rule not in (1.0, -1.0):
            raise ConfigError(f"the mirror rule is {rule}; a sign is 1.0 or -1.0")
        return [(0, float(rule))]

    def partners(self, given: Entities) -> Places:
        """The mirror image of each of `given` among them, and a joint's sign; else ConfigError."""
        places = [self._partner(name, given.names) for name in given.names]
        if not isinstance(given, Joints):
            return [(place, 1.0) for place in places]
        names = zip(given.names, (given.names[place] for place in places), strict=True)
        return [(place, self._sign(*pair)) for place, pair in zip(places, names, strict=True)]

    def relative_joints(self, joints: Joints) -> Places:
        """The same, for positions relative to the start, which must be symmetric."""
        start = [float(self._start.qpos[self._model.joint(n).qposadr[0]]) for n in joints.names]
        places = self.partners(joints)
        _check_alike(joints.names, places, start, start, "initial position")
        return places

    def _observation(self, name: str, cfg: ObservationTermCfg) -> Places:
        with _in_term("observations", name):
            parameters = inspect.signature(cfg.func).parameters.items()
            params = {n: p.default for n, p in parameters if p.default is not p.empty}
            params |= resolve_params(cfg.params, self._model, "cpu")
            places = self.places(_rule(cfg.func, cfg.mirror), params)
            clip, scale = cfg.clip, cfg.scale
            if clip and clip[0] != -clip[1] and any(sign < 0.0 for _, sign in places):
                raise ConfigError(f"its clip, {clip[0]} {clip[1]}, is not the same for both signs")
            if isinstance(scale, tuple) and any(
                scale[i] != scale[k] for i, (k, _) in enumerate(places)
            ):
                raise ConfigError("its scale is not the same for an entry and its mirror image")
        return _joined([places] * max(cfg.history_length, 1))

    def _action(self, name: str, term: ActionTerm) -> Places:
        rule = self.cfg.actions[name].mirror
        with _in_term("actions", name):
            if rule is None and isinstance(term, JointAction):
                return self._joint_action(term)
            places = self.places(_rule(term, rule), {})
            if len(places) != term.dim:
                raise ConfigError(f"it has {term.dim} entries, and its mirror rule {len(places)}")
        return places

    def _joint_action(self, term: JointAction) -> Places:
        """Joints' places and signs; ConfigError if mirrored actions are no mirrored targets."""
        places, names = self.partners(term.joints), term.joints.names
        values = (term.scale, term.offset, term.low, term.high)
        scale, offset, low, high = (value.tolist() for value in values)
        _check_alike(names, [(place, 1.0) for place, _ in places], scale, scale, "scale")
        _check_alike(names, places, offset, offset, "offset")
        _check_alike(names, places, low, high, "lower bound")
        _check_alike(names, places, high, low, "upper bound")
        return places

    def _partner(self, name: str, names: Sequence[str]) -> int:
        """The place among `names` of the mirror image of `name`."""
        for one, other in self._pairs:
            if own := one.fullmatch(name):
                matches = [other.fullmatch(n) for n in names]
                images = [i for i, m in enumerate(matches) if m and m.groups() == own.groups()]
                if len(images) != 1:
                    found = "several names are" if images else "no name is"
                    text = f"{found} the mirror image of {name!r} among {', '.join(names)}"
                    raise ConfigError(f"{text}; see the task's symmetry=Mirror(...)")
                return images[0]
        return names.index(name)

    def _sign(self, name: str, partner: str) -> float:
        """1.0 if a reflected joint has its partner's position, and -1.0 if it has the opposite."""
        one, other = self._model.joint(name), self._model.joint(partner)
        what = f"the joints {name!r} and {partner!r} are no mirror images"
        if name == partner:
            what = f"the joint {name!r} is not symmetric"
        if one.type[0] not in (_HINGE, _SLIDE) or other.type[0] != one.type[0]:
            raise ConfigError(f"{what}: only hinges and slides can be, both of the same type")
        factors, axis = np.array(self.vector), self._axes[other.id]
        cosine = self._axes[one.id] * factors @ axis
        away = self._anchors[one.id] * factors - self._anchors[other.id]
        away -= away @ axis * axis  # where on its axis an anchor lies means nothing
        if one.type[0] == _HINGE:
            cosine = -cosine  # its axis is a pseudo-vector
        if abs(cosine) < _COSINE:
            raise ConfigError(f"{what}: their axes differ, with all joints at zero")
        if one.type[0] == _HINGE and (distance := np.linalg.norm(away)) > _DISTANCE:
            text = f"their axes are {1e3 * distance:.0f} mm apart"
            raise ConfigError(f"{what}: {text}, with all joints at zero")
        zeros = self._model.qpos0[[one.qposadr[0], other.qposadr[0]]]
        if abs(zeros[0] - np.sign(cosine) * zeros[1]) > _OFFSET:
            raise ConfigError(f"{what}: their reference positions (ref) differ")
        return float(np.sign(cosine))


def _each_vector(reflection: Reflection, params: Params) -> Places:
    images = reflection.partners(_first(Entities, params))
    return [(3 * i + k, sign) for i, _ in images for k, sign in enumerate(reflection.vector)]


def _command(reflection: Reflection, params: Params) -> Places:
    cfg = reflection.cfg.commands[params["command"]]
    with _in_term("commands", params["command"]):
        return reflection.places(_rule(cfg.func, None), cfg.params)


def _grid(reflection: Reflection, params: Params) -> Places:
    rows, columns = (round(n / params["resolution"]) + 1 for n in params["size"])
    x, y, _ = map(int, reflection.vector)
    points = np.arange(rows * columns).reshape(rows, columns)[::x, ::y]
    return [(int(i), 1.0) for i in points.flat]


_RULES: dict[str, Callable[[Reflection, Params], Places]] = {
    "vector": lambda r, _: list(enumerate(r.vector)),
    "pseudo_vector": lambda r, _: [(i, -sign) for i, sign in enumerate(r.vector)],
    "planar_velocity": lambda r, _: list(enumerate((*r.vector[:2], -r.vector[2]))),
    "each": lambda r, params: r.partners(_first(Entities, params)),
    "each_vector": _each_vector,
    "relative_joints": lambda r, params: r.relative_joints(_first(Joints, params)),
    "command": _command,
    "actions": lambda r, _: r.actions,
    "grid": _grid,
}


def _first(kind: type[E], params: Params) -> E:
    for value in params.values():
        if isinstance(value, kind):
            return value
    raise ConfigError(f"its mirror rule is for terms with a parameter of {kind.__name__}")


def _rule(term: Any, given: MirrorRule | None) -> MirrorRule:
    """The rule of a function or class, or of its configuration, which has the last word."""
    rule = getattr(getattr(term, "func", term), "mirror", None) if given is None else given
    if rule is None:
        text = "give it mirror=..., such as (1.0, -1.0), a sign for each of two entries"
        raise ConfigError(f"how it is reflected is not known; {text}")
    return rule


def _check_alike(
    names: Sequence[str], places: Places, own: list[float], turned: list[float], what: str
) -> None:
    """Raise ConfigError unless each of `own` is its partner's, or minus its partner's `turned`."""
    for i, (k, sign) in enumerate(places):
        if abs(own[i] - (own[k] if sign > 0.0 else -turned[k])) > _OFFSET:
            both = repr(names[i]) if i == k else f"{names[i]!r} and {names[k]!r}"
            raise ConfigError(f"the {what} of {both} is not symmetric: {own[i]:g}, {own[k]:g}")


def _joined(parts: Iterable[Places]) -> Places:
    """The parts' entries one after the other, each part's places counted on from those before."""
    joined: Places = []
    for part in parts:
        before = len(joined)
        joined += [(before + place, sign) for place, sign in part]
    return joined


def _as_map(places: Places, device: torch.device) -> MirrorMap:
    index, sign = (torch.tensor(numbers, device=device) for numbers in zip(*places, strict=True))
    return MirrorMap(index, sign)


def _patterns(mirror: Mirror) -> list[tuple[re.Pattern[str], re.Pattern[str]]]:
    """Both ways from a name to its mirror image."""
    try:
        pairs = [(re.compile(a), re.compile(b)) for a, b in mirror.joints.items()]
    except re.error as error:
        raise ConfigError(f"symmetry=Mirror(joints=...): no regular expression: {error}") from error
    return [*pairs, *((b, a) for a, b in pairs)]


@contextmanager
def _in_term(*path: str) -> Iterator[None]:
    """Name the term in a ConfigError."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{flag('env', *path)}: {error}") from error
