"""The reflection of a task's observations and actions, by its `Mirror` and its model."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import mujoco
import numpy as np
import torch
from torch import Tensor

from simtrain.algorithms.symmetry import MirrorMap, MirrorMaps
from simtrain.env.cfg import ObservationTermCfg, TaskCfg
from simtrain.env.control.actions import Actions, JointAction
from simtrain.env.control.cfg import ActionTerm
from simtrain.env.env import Env
from simtrain.env.names import (
    FREE,
    ONE_DEGREE,
    Entities,
    Joints,
    find_base,
    initial_state,
    resolve_params,
)
from simtrain.env.reading import MirrorRule
from simtrain.errors import ConfigError, config_errors_of, flag

E = TypeVar("E", bound=Entities)
Params = Mapping[str, Any]
Places = list[tuple[int, float]]
_HINGE = mujoco.mjtJoint.mjJNT_HINGE.value
# How far mirror images may differ: the cosine between axes, m, and m or rad.
_COSINE, _DISTANCE, _OFFSET = 0.99, 0.01, 1e-3


def mirror_maps(env: Env, device: torch.device) -> MirrorMaps:
    """How `env`'s observations and actions are reflected; ConfigError if this is not known."""
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
    """The reflection of vectors, joints and named elements, and so of a task's terms."""

    def __init__(self, cfg: TaskCfg, model: mujoco.MjModel) -> None:
        """Raises ConfigError if it is not known how a term of the task is reflected."""
        if cfg.symmetry is None:
            raise ConfigError("--ppo.symmetry needs a task that is symmetric: symmetry=Mirror()")
        try:
            pairs = [(re.compile(a), re.compile(b)) for a, b in cfg.symmetry.joints.items()]
        except re.error as error:
            text = "is no regular expression, in the task's symmetry=Mirror(...)"
            raise ConfigError(f"{error.pattern!r} {text}: {error}") from error
        self.cfg, self.model = cfg, model
        self._pairs = [*pairs, *((b, a) for a, b in pairs)]
        self.vector = [-1.0 if axis == cfg.symmetry.normal else 1.0 for axis in "xyz"]
        """Factors of a reflected vector's x, y and z; those of a pseudo-vector are minus these."""
        self._start = initial_state(model, cfg.keyframe)
        data = mujoco.MjData(model)
        mujoco.mj_kinematics(model, data)
        origin, rotation = np.zeros(3), np.eye(3)
        if (model.jnt_type == FREE).any():
            base = find_base(model).body
            origin, rotation = data.xpos[base], data.xmat[base].reshape(3, 3)
        self._anchors, self._axes = (data.xanchor - origin) @ rotation, data.xaxis @ rotation
        self.frames = torch.tensor(rotation.T @ data.site_xmat.reshape(-1, 3, 3))
        """How sites are turned towards the base, with all joints at zero, ``(sites, 3, 3)``."""
        terms = Actions(cfg, model, "cpu").terms
        self.actions = _joined([self._action(name, term) for name, term in terms.items()])
        """The places and signs of all actions."""
        self.observations = {
            group: {name: self._observation(f"{group}.{name}", term) for name, term in of.items()}
            for group, of in cfg.observation_groups().items()
        }
        """The places and signs of all terms by group and name, their history included."""

    def places(self, rule: MirrorRule, params: Params) -> Places:
        """Indices and signs by a rule, for a term with the resolved `params`."""
        if isinstance(rule, tuple):
            return _joined([self.places(part, params) for part in rule])
        function = _RULES.get(rule) if isinstance(rule, str) else rule
        if callable(function):
            return function(self, params)
        if function not in (1.0, -1.0):
            known = f"one of {', '.join(_RULES)}, a sign, 1.0 or -1.0, a tuple of these"
            raise ConfigError(f"the mirror rule is {rule!r}; it must be {known} or a function")
        return [(0, float(function))]

    def resolved(self, params: Params) -> dict[str, Any]:
        """A term's parameters, with indices for names and patterns."""
        return resolve_params(dict(params), self.model, "cpu")

    def partners(self, given: Entities) -> Places:
        """The index in `given` of each mirror image, and a joint's sign; or ConfigError."""
        places = [self._partner(name, given.names) for name in given.names]
        if not isinstance(given, Joints):
            return [(place, 1.0) for place in places]
        names = zip(given.names, (given.names[place] for place in places), strict=True)
        return [(place, self._sign(*pair)) for place, pair in zip(places, names, strict=True)]

    def relative_joints(self, joints: Joints) -> Places:
        """The same, for positions relative to the start, which must be symmetric."""
        start = [float(self._start.qpos[self.model.joint(n).qposadr[0]]) for n in joints.names]
        places = self.partners(joints)
        values = torch.tensor([start])
        _check_alike(joints, _as_map(places)(values), values, "initial positions are")
        return places

    def _observation(self, name: str, cfg: ObservationTermCfg) -> Places:
        with config_errors_of(flag("env", "observations", name)):
            parameters = inspect.signature(cfg.func).parameters.items()
            params = {n: p.default for n, p in parameters if p.default is not p.empty}
            params |= self.resolved(cfg.params)
            places = self.places(_rule(cfg.func, cfg.mirror), params)
            clip, scale = cfg.clip, cfg.scale
            if clip and clip[0] != -clip[1] and any(sign < 0.0 for _, sign in places):
                raise ConfigError(f"its clip, {clip[0]} {clip[1]}, is not the same for both signs")
            if isinstance(scale, tuple) and scale != tuple(scale[place] for place, _ in places):
                raise ConfigError("its scale is not the same for an entry and its mirror image")
        return _joined([places] * max(cfg.history_length, 1))

    def _action(self, name: str, term: ActionTerm) -> Places:
        rule = self.cfg.actions[name].mirror
        with config_errors_of(flag("env", "actions", name)):
            if rule is None and isinstance(term, JointAction):
                places = self.partners(term.joints)
                reflect, actions = _as_map(places), _PROBES.repeat(1, term.dim)
                targets, images = (
                    torch.addcmul(term.offset, a, term.scale).clamp(term.low, term.high)
                    for a in (actions, reflect(actions))
                )
                what = "targets (scale, offset, clip, ctrlrange) are"
                _check_alike(term.joints, reflect(targets), images, what)
                return places
            places = self.places(_rule(term, rule), {})
            if len(places) != term.dim:
                raise ConfigError(f"it has {term.dim} entries, and its mirror rule {len(places)}")
        return places

    def _partner(self, name: str, names: Sequence[str]) -> int:
        """The index in `names` of the mirror image of `name`."""
        for one, other in self._pairs:
            if own := one.fullmatch(name):
                matches = [other.fullmatch(n) for n in names]
                images = [i for i, m in enumerate(matches) if m and m.groups() == own.groups()]
                if len(images) != 1:
                    subject = "several names are" if images else "no name is"
                    text = f"{subject} the mirror image of {name!r} among {', '.join(names)}"
                    raise ConfigError(f"{text}; see the task's symmetry=Mirror(...)")
                return images[0]
        return names.index(name)

    def _sign(self, name: str, partner: str) -> float:
        """1.0 if a reflected joint has its partner's position, -1.0 if it has the opposite one."""
        one, other = self.model.joint(name), self.model.joint(partner)
        kind, factors, axis = one.type[0], np.array(self.vector), self._axes[other.id]
        # The axis of a hinge is a pseudo-vector.
        cosine = self._axes[one.id] * (-factors if kind == _HINGE else factors) @ axis
        sign = float(np.sign(cosine))
        away = self._anchors[one.id] * factors - self._anchors[other.id]
        distance = np.linalg.norm(away - away @ axis * axis)  # where on its axis does not matter
        zeros = self.model.qpos0[[one.qposadr[0], other.qposadr[0]]]
        if kind not in ONE_DEGREE or other.type[0] != kind:
            reason = "only hinges and slides can be, both of the same type"
        elif abs(cosine) < _COSINE:
            reason = "their axes differ, with all joints at zero"
        elif kind == _HINGE and distance > _DISTANCE:
            reason = f"their axes are {1e3 * distance:.0f} mm apart, with all joints at zero"
        elif abs(zeros[0] - sign * zeros[1]) > _OFFSET:
            reason = "their reference positions (ref) differ"
        else:
            return sign
        pair = f"the joints {name!r} and {partner!r} are no mirror images"
        what = pair if name != partner else f"the joint {name!r} is not symmetric"
        raise ConfigError(f"{what}: {reason}")


def _each_vector(reflection: Reflection, params: Params) -> Places:
    images = reflection.partners(_first(Entities, params))
    return [(3 * i + k, sign) for i, _ in images for k, sign in enumerate(reflection.vector)]


def _command(reflection: Reflection, params: Params) -> Places:
    cfg = reflection.cfg.commands[params["command"]]
    with config_errors_of(flag("env", "commands", params["command"])):
        return reflection.places(_rule(cfg.func, None), reflection.resolved(cfg.params))


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
    "each_name": lambda r, params: [(i, 1.0) for i, _ in r.partners(_first(Entities, params))],
    "each_vector": _each_vector,
    "relative_joints": lambda r, params: r.relative_joints(_first(Joints, params)),
    "command": _command,
    "actions": lambda r, _: r.actions,
    "grid": _grid,
}
_PROBES = torch.tensor([[-1e3], [-1.0], [0.0], [1.0], [1e3]])  # actions, some out of all bounds


def _first(kind: type[E], params: Params) -> E:
    for value in params.values():
        if isinstance(value, kind):
            return value
    raise ConfigError(f"its mirror rule is for terms with a parameter of {kind.__name__}")


def _rule(term: Any, given: MirrorRule | None) -> MirrorRule:
    """The rule of a term's configuration or, without one, of its function or class."""
    rule = getattr(getattr(term, "func", term), "mirror", None) if given is None else given
    if rule is None:
        text = "give it mirror=..., such as (1.0, -1.0), a sign for each of two entries"
        raise ConfigError(f"its mirror rule is not known; {text}")
    return rule


def _check_alike(joints: Joints, values: Tensor, images: Tensor, what: str) -> None:
    """Raise ConfigError for the first of `joints` of which a row has another value than image."""
    for i in ((values - images).abs() > _OFFSET).any(dim=0).nonzero().flatten().tolist():
        raise ConfigError(f"the {what} not symmetric: those of {joints.names[i]!r}")


def _joined(parts: Iterable[Places]) -> Places:
    """The entries of all parts, with the indices of each part shifted by the sizes before it."""
    joined: Places = []
    for part in parts:
        before = len(joined)
        joined += [(before + place, sign) for place, sign in part]
    return joined


def _as_map(places: Places, device: torch.device | str = "cpu") -> MirrorMap:
    index, sign = (torch.tensor(numbers, device=device) for numbers in zip(*places, strict=True))
    return MirrorMap(index, sign)
