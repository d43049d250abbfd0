# ruff: noqa: F403, F405 - the names are listed once, below, and type checkers follow the stars
"""simtrain: PPO for robots on massively parallel MuJoCo simulation.

What a task file needs: ``task``, the ``...Cfg`` classes, and the ready-made terms in ``mdp``. They
are imported when they are first used, so that a command is there at once.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simtrain import mdp
    from simtrain.env.cfg import *
    from simtrain.env.control.cfg import *
    from simtrain.ppo_cfg import *
    from simtrain.registry import task

__version__ = "0.1.0"
__all__ = [
    "ActionTermCfg",
    "ActorCfg",
    "ActuatorActionCfg",
    "CnnCfg",
    "CommandTermCfg",
    "CriticCfg",
    "CurriculumTermCfg",
    "DcMotorActuatorCfg",
    "DifferentialIKActionCfg",
    "EventTermCfg",
    "GaussianNoiseCfg",
    "IdealPdActuatorCfg",
    "JointEffortActionCfg",
    "JointPositionActionCfg",
    "JointVelocityActionCfg",
    "MetricTermCfg",
    "Mirror",
    "NetworkActuatorCfg",
    "ObservationGroupCfg",
    "ObservationTermCfg",
    "PpoCfg",
    "RelativeJointPositionActionCfg",
    "RewardTermCfg",
    "SimCfg",
    "SiteEffortActionCfg",
    "SubTerrainCfg",
    "SymmetryCfg",
    "TaskCfg",
    "TendonEffortActionCfg",
    "TendonLengthActionCfg",
    "TendonVelocityActionCfg",
    "TerminationTermCfg",
    "TerrainCfg",
    "UniformNoiseCfg",
    "mdp",
    "task",
]


def __getattr__(name: str) -> Any:
    if name == "mdp":
        return import_module("simtrain.mdp")
    for module in ("env.cfg", "env.control.cfg", "ppo_cfg", "registry") if name in __all__ else ():
        found = vars(import_module(f"simtrain.{module}"))
        if name in found:
            return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if os.environ.get("MUJOCO_GL"):
    import_module("simtrain.view.opengl").import_mujoco_without_opengl()
