# ruff: noqa: F403 - the names are listed once, below, and type checkers follow these imports
"""simtrain: PPO for robots on massively parallel MuJoCo simulation.

For task files: ``task``, the ``...Cfg`` classes, and the ready-made terms in ``mdp``. For programs
and notebooks: ``make_env``, ``train``, ``load_policy`` and ``evaluate``. All are imported when they
are first used, so that a command starts at once.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simtrain import mdp as mdp
    from simtrain.algorithms.cfg import *
    from simtrain.api import *
    from simtrain.config.tasks import *
    from simtrain.config.train import *
    from simtrain.env.cfg import *
    from simtrain.env.control.cfg import *

__version__ = "0.1.0"
_NAMES = {
    "algorithms.cfg": "ActorCfg CnnCfg CriticCfg PpoCfg SymmetryCfg",
    "api": "evaluate load_policy make_env train train_config",
    "config.tasks": "task",
    "config.train": "TrainConfig",
    "env.cfg": """CommandTermCfg CurriculumTermCfg EventTermCfg GaussianNoiseCfg MetricTermCfg
        Mirror ObservationGroupCfg ObservationTermCfg RewardTermCfg SimCfg SubTerrainCfg TaskCfg
        TerminationTermCfg TerrainCfg UniformNoiseCfg""",
    "env.control.cfg": """ActionTermCfg ActuatorActionCfg DcMotorActuatorCfg DifferentialIKActionCfg
        IdealPdActuatorCfg JointEffortActionCfg JointPositionActionCfg JointVelocityActionCfg
        NetworkActuatorCfg RelativeJointPositionActionCfg SiteEffortActionCfg TendonEffortActionCfg
        TendonLengthActionCfg TendonVelocityActionCfg""",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = ["mdp", *_MODULES]


def __getattr__(name: str) -> Any:
    if name == "mdp":
        return import_module("simtrain.mdp")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"simtrain.{_MODULES[name]}"), name)


if os.environ.get("MUJOCO_GL"):
    import_module("simtrain.view.opengl").import_mujoco_without_opengl()
