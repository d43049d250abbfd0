"""Ready-made terms for tasks: ``mdp.joint_pos``, ``mdp.time_out``, ...

Terms are functions, or classes where something is prepared or kept between steps; a task does not
have to know which, and both are named alike. The public functions and classes of `TERM_MODULES`
are the terms. They are imported when one is first used, so that listing tasks imports no torch.
"""

# ruff: noqa: F403
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from simtrain.errors import did_you_mean

if TYPE_CHECKING:
    from simtrain.mdp.events import *
    from simtrain.mdp.locomotion.gait import *
    from simtrain.mdp.locomotion.terrain import *
    from simtrain.mdp.locomotion.velocity_terms import *
    from simtrain.mdp.manipulation.terms import *
    from simtrain.mdp.observations import *
    from simtrain.mdp.randomization import *
    from simtrain.mdp.rays import *
    from simtrain.mdp.rewards import *
    from simtrain.mdp.terminations import *
    from simtrain.mdp.tracking.motion import *
    from simtrain.mdp.tracking.terms import *

TERM_MODULES = ("observations", "rays", "rewards", "terminations", "randomization", "events",
                "locomotion.velocity_terms", "locomotion.gait", "locomotion.terrain",
                "tracking.motion", "tracking.terms", "manipulation.terms")  # fmt: skip


def terms_of(module: str) -> dict[str, Any]:
    """The terms of one of `TERM_MODULES`, by name."""
    path = f"simtrain.mdp.{module}"
    return {
        name: value
        for name, value in vars(importlib.import_module(path)).items()
        if getattr(value, "__module__", None) == path and not name.startswith("_")
    }


def __getattr__(name: str) -> Any:
    terms = {} if name.startswith("__") else _all_terms()
    globals().update(terms)  # found without this function from now on, and the modules likewise
    if name not in globals():
        raise AttributeError(f"simtrain.mdp has no term {name!r}{did_you_mean(name, terms)}")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(_all_terms())


def _all_terms() -> dict[str, Any]:
    return {name: term for module in TERM_MODULES for name, term in terms_of(module).items()}
