"""Declarations of a term besides its value: whether a robot provides it, and how it is mirrored.

The other work of a robot's program is derived from the term, see `simtrain.deployment.robot`.

Base and world are mirrored together, so that a vector changes in the same way in both frames. Each
entry of a mirrored observation or action is one of the original entries with a sign: an index and a
sign. A rule defines them; it is given by `mirrored_as` or by the term's configuration:

- ``"vector"`` and ``"pseudo_vector"``, such as an angular velocity: three entries;
- ``"each"``: one entry for each of the term's joints, sites, sensors, ...; ``"each_name"``: the
  same without the signs of joints; ``"each_vector"``: a vector for each; ``"relative_joints"``:
  positions relative to the start;
- ``"planar_velocity"``: [v_x, v_y, w_z]; ``"command"`` and ``"actions"``: as those of the task;
- ``"grid"``: points around the base, row by row along x, by the parameters size and resolution;
- 1.0 or -1.0: one entry with this sign; a tuple of rules: several rules in sequence;
- a function of a `Reflection` and the term's parameters: an index and a sign for each entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from simtrain.errors import ConfigError

T = TypeVar("T")
MirrorRule = float | str | tuple[Any, ...] | Callable[..., list[tuple[int, float]]]
"""How the entries of a term are reflected."""
_PREFIXES = ("L R", "FL FR", "RL RR", "HL HR", "LF RF", "LH RH")  # with F(ront), R(ear), H(ind)
_SIDES = {"(.*)left(.*)": "(.*)right(.*)", "(.*)Left(.*)": "(.*)Right(.*)"} | {
    f"{one}_(.*)": f"{other}_(.*)" for one, other in map(str.split, _PREFIXES)
}


@dataclass
class Mirror:
    """The symmetry of a robot: the pairs of mirrored parts, and the mirror plane.

    The plane goes through the base, or through the world's origin if there is no base. The signs of
    joints are computed from the model by comparing each joint with its partner.
    """

    joints: dict[str, str] = field(default_factory=lambda: dict(_SIDES))
    """Patterns of names on one side and of their partners on the other side; the text in
    parentheses must be the same: ``{"left_(.*)": "right_(.*)"}``. They apply to sites, sensors and
    all other named elements, too. A name that matches no pattern is its own mirror image."""
    normal: Literal["x", "y", "z"] = "y"
    """The axis that is perpendicular to the plane, of the base."""


def mirrored_as(rule: MirrorRule) -> Callable[[T], T]:
    """Declare how the value of a term's function or class, or of a command's class, is mirrored."""
    return _with_attribute("mirror", rule)


def checked_by(check: Callable[..., None]) -> Callable[[T], T]:
    """Declare the check of the parameters of a term, see `simtrain.env.names.check_term`."""
    return _with_attribute("check", check)


def read_as(
    kind: str,
    names: tuple[str, ...] = (),
    *,
    more: Callable[[Any, Mapping[str, Any]], dict[str, Any]] | None = None,
) -> Callable[[T], T]:
    """Declare what a robot's program must provide for a term's function or class.

    ``"given"``: the value, which does not depend only on joints, the floating base, contacts,
    places and commands, such as an image. `more` is a function of the environment and the term's
    resolved parameters; its result is written to ``policy.json``, and numbers under ``minus`` are
    subtracted from the value. ``"places"``: the poses of the bodies or sites of these `names`,
    which the term looks up. All else is detected; ConfigError for another `kind`.
    """
    if kind == "given":
        return _with_attribute("given", more or (lambda env, params: {}))
    if kind != "places":
        known = '"given", or "places" with names; all else is detected, without read_as'
        raise ConfigError(f"read_as({kind!r}) is not known: write {known}")
    return _with_attribute("places", names)


def _with_attribute(name: str, value: object) -> Callable[[T], T]:
    def decorate(function: T) -> T:
        setattr(function, name, value)
        return function

    return decorate
