"""Ready-made terms for tasks: ``mdp.joint_pos``, ``mdp.time_out``, ...

The modules behind the names are imported when a name is first used, so that listing tasks does not
have to import torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = {
    "observations": ("joint_pos", "joint_vel", "last_action"),
    "rewards": ("action_rate", "tolerance"),
    "terminations": ("time_out",),
    "events": ("reset_joints_gaussian", "reset_joints_uniform"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"simtrain.mdp.{name}")
    if name not in _HOME:
        from simtrain.errors import did_you_mean

        raise AttributeError(f"simtrain.mdp has no term {name!r}{did_you_mean(name, _HOME)}")
    term = getattr(importlib.import_module(f"simtrain.mdp.{_HOME[name]}"), name)
    globals()[name] = term  # found without this function from now on: terms call terms
    return term


def __dir__() -> list[str]:
    return sorted((*_MODULES, *_HOME))
