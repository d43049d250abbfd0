# ruff: noqa: F403, F405 - the names are listed once, below, and type checkers follow the stars
"""simtrain: PPO for robots on massively parallel MuJoCo simulation.

What a task file needs: ``task``, the ``...Cfg`` classes, and the ready-made terms in ``mdp``. And
what a program or a notebook needs: ``make_env``, ``train``, ``load_policy`` and ``evaluate``. They
are imported when they are first used, so that a command is there at once.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simtrain import mdp
    from simtrain.algorithms.cfg import *
    from simtrain.api import evaluate, load_policy, make_env, train, train_config
    from simtrain.config.tasks import task
    from simtrain.config.train import TrainConfig
    from simtrain.env.cfg import *
    from simtrain.env.control.cfg import *

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
    "TrainConfig",
    "UniformNoiseCfg",
    "evaluate",
    "load_policy",
    "make_env",
    "mdp",
    "task",
    "train",
    "train_config",
]


def __getattr__(name: str) -> Any:
    if name == "mdp":
        return import_module("simtrain.mdp")
    modules = (
        "env.cfg",
        "env.control.cfg",
        "algorithms.cfg",
        "config.tasks",
        "config.train",
        "api",
    )
    for module in modules if name in __all__ else ():
        found = vars(import_module(f"simtrain.{module}"))
        if name in found:
            return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if os.environ.get("MUJOCO_GL"):
    import_module("simtrain.view.opengl").import_mujoco_without_opengl()
