"""simtrain: PPO for robots on massively parallel MuJoCo simulation.

What a task file needs: ``task``, the ``...Cfg`` classes, and the ready-made terms in ``mdp``.
"""

from simtrain import mdp
from simtrain.env.cfg import (
    ActionTermCfg,
    CommandTermCfg,
    CurriculumTermCfg,
    EventTermCfg,
    GaussianNoiseCfg,
    JointEffortActionCfg,
    JointPositionActionCfg,
    JointVelocityActionCfg,
    MetricTermCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SimCfg,
    SubTerrainCfg,
    TaskCfg,
    TerminationTermCfg,
    TerrainCfg,
    UniformNoiseCfg,
)
from simtrain.ppo_cfg import ActorCfg, CriticCfg, PpoCfg
from simtrain.registry import task

__version__ = "0.1.0"

__all__ = [
    "ActionTermCfg",
    "ActorCfg",
    "CommandTermCfg",
    "CriticCfg",
    "CurriculumTermCfg",
    "EventTermCfg",
    "GaussianNoiseCfg",
    "JointEffortActionCfg",
    "JointPositionActionCfg",
    "JointVelocityActionCfg",
    "MetricTermCfg",
    "ObservationTermCfg",
    "PpoCfg",
    "RewardTermCfg",
    "SimCfg",
    "SubTerrainCfg",
    "TaskCfg",
    "TerminationTermCfg",
    "TerrainCfg",
    "UniformNoiseCfg",
    "mdp",
    "task",
]
