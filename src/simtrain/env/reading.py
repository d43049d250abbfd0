"""What a term's author says besides its value: whether a robot gives it, and how it is mirrored.

What else a robot's program does is found out from the term itself, see `simtrain.deployment.robot`.

Base and world are reflected together, so that a vector changes alike in either's frame. An entry of
a reflected observation or action is one of its entries, maybe with its sign turned: a place and a
sign. A rule says which, given by `mirrored_as` or by the term's configuration:

- ``"vector"`` and ``"pseudo_vector"``, such as an angular velocity: three entries;
- ``"each"``: an entry for each of the joints, sites, sensors, ... that the term is given, and
  ``"each_name"``: the same without joints' signs, ``"each_vector"``: a vector for each;
  ``"relative_joints"``: positions relative to the start;
- ``"planar_velocity"``: [v_x, v_y, w_z]; ``"command"`` and ``"actions"``: as those of the task are;
- ``"grid"``: points around the base, row by row along x, by the parameters size and resolution;
- 1.0 or -1.0: one entry with this sign, and a tuple of rules: one after the other;
- a function of a `Reflection` and the term's parameters: a place and a sign for each entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

T = TypeVar("T")
MirrorRule = float | str | tuple[Any, ...] | Callable[..., list[tuple[int, float]]]
"""How the entries of a term are reflected."""
_PREFIXES = ("L R", "FL FR", "RL RR", "HL HR", "LF RF", "LH RH")  # with F(ront), R(ear), H(ind)
_SIDES = {"(.*)left(.*)": "(.*)right(.*)", "(.*)Left(.*)": "(.*)Right(.*)"} | {
    f"{one}_(.*)": f"{other}_(.*)" for one, other in map(str.split, _PREFIXES)
}


@dataclass
class Mirror:
    """A robot's symmetry: which parts are each other's mirror images, and about which plane.

    The plane goes through the base, or through the world's origin if the robot stands on none.
    Joints' signs follow from the model, where a joint and its partner are compared.
    """

    joints: dict[str, str] = field(default_factory=lambda: dict(_SIDES))
    """Patterns of names on the one side and of their partners' on the other, which agree in what
    stands in parentheses: ``{"left_(.*)": "right_(.*)"}``. They hold for sites, sensors and all
    else that has a name, too. What matches none is its own mirror image."""
    normal: Literal["x", "y", "z"] = "y"
    """The axis that is perpendicular to the plane, of the base."""


def mirrored_as(rule: MirrorRule) -> Callable[[T], T]:
    """Say how the value of a term's function or class, or of a command's class, is reflected."""
    return _with_attribute("mirror", rule)


def checked_by(check: Callable[..., None]) -> Callable[[T], T]:
    """Say what checks the parameters of a term's function, see `simtrain.env.names.check_term`."""
    return _with_attribute("check", check)


def read_as(
    source: str,
    names: tuple[str, ...] = (),
    *,
    more: Callable[[Any, Mapping[str, Any]], dict[str, Any]] | None = None,
    **_: Any,
) -> Callable[[T], T]:
    """Say what a robot's program must tell for a term's function or class.

    ``"given"`` is for what follows from no joint, floating base, contact, place or command, such as
    images: the program gives the value. `more` of the environment and the term's resolved
    parameters is what ``policy.json`` says of it; numbers under ``minus`` are subtracted.
    ``"places"`` is for a term that looks up the poses of bodies or sites by their `names`.
    Other sources, and `more` with ``places``, are those of older tasks; most are found out now.
    """
    known = more or (lambda env, params: {"places": names} if names else {})
    return _with_attribute("given" if source == "given" else "places", known)


def _with_attribute(name: str, value: object) -> Callable[[T], T]:
    def decorate(function: T) -> T:
        setattr(function, name, value)
        return function

    return decorate
