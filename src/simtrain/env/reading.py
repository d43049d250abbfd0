"""How a robot's program computes what a policy sees, told by each observation term. No torch.

``policy.json`` has these words for every observation, and the exported ``run_policy.py`` follows
them. A term that says nothing is refused by ``export``, by name. A reading is a source, of which
`entries` may be taken and a value subtracted; then `functions` of it stand side by side:

- ``"joint_pos"`` and ``"joint_vel"``: of the hinges and slides that the term is given;
- ``"base_pos"``, in the world, and ``"base_lin_vel"``, ``"base_ang_vel"``, ``"projected_gravity"``
  of the floating base, in its own frame;
- ``"contact"``: 1 or 0 for each of the contact sensors that the term is given;
- ``"last_action"``: what the policy gave at the step before; ``"command"``: that of the name that
  the term is given;
- ``"motion_anchor_pos"`` and ``"motion_anchor_ori"``: where the anchor of a command's motion is
  from the robot's, and the first two columns, row by row, of how it is turned;
- ``"place_pos"`` and ``"place_ori"``: where places, such as objects, are from an origin along the
  axes of a frame, and the first two columns, row by row, of how they are turned; ``"goal_pos"``:
  where the goal is that is the command of the name that the term is given;
- ``"given"``: the program gives it by the term's name, such as what a camera sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

T = TypeVar("T")
Source = Literal[
    "joint_pos", "joint_vel", "base_pos", "base_lin_vel", "base_ang_vel", "projected_gravity",
    "contact", "last_action", "command", "motion_anchor_pos", "motion_anchor_ori",
    "place_pos", "place_ori", "goal_pos", "given",
]  # fmt: skip
Function = Literal["cos", "sin", "rate"]
"""``rate`` is the change since the step before, a second; 0 at an episode's first."""


@dataclass(frozen=True)
class Reading:
    """Where a term's value comes from, see `read_as`."""

    source: Source
    functions: tuple[Function, ...] = ()
    entries: tuple[int, ...] = ()
    more: Callable[[Any, Mapping[str, Any]], dict[str, Any]] | None = None


def read_as(
    source: Source,
    *,
    functions: tuple[Function, ...] = (),
    entries: tuple[int, ...] = (),
    more: Callable[[Any, Mapping[str, Any]], dict[str, Any]] | None = None,
) -> Callable[[T], T]:
    """Say how the value of an observation term's function or class is read on a robot.

    `more` of the environment and the term's resolved parameters gives what else the program must
    know: ``minus``, numbers to subtract, or ``points`` that a ``"given"`` value is for.
    """

    def told(function: T) -> T:
        function.reading = Reading(source, functions, entries, more)  # type: ignore[attr-defined]
        return function

    return told
