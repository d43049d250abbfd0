"""Names of the numbers that training logs, known before it starts. Imports nothing heavy."""

from __future__ import annotations

from simtrain.env.cfg import TaskCfg
from simtrain.phases import PHASES, TAG

EVALUATION_TAGS = ("mean_return", "mean_episode_length", "failure_rate", "iteration")
"""What every evaluation gives, logged as ``Eval/<name>``; a task's own metrics come after it."""

_ALWAYS = (
    "Train/mean_reward",
    "Train/mean_episode_length",
    "Loss/value",
    "Loss/surrogate",
    "Loss/entropy",
    "Loss/kl",
    "Loss/learning_rate",
    "Policy/mean_std",
    "Sim/nan_resets",
    "Perf/total_fps",
    "Perf/collection_time",
    "Perf/learning_time",
)


def metric_tags(task: TaskCfg, *, overflow: bool, phase_times: bool = True) -> tuple[str, ...]:
    """Every tag that a training run logs, those of evaluation at the end.

    Args:
        task: the task.
        overflow: whether the engine tells how full its buffers are.
        phase_times: whether the phases of an iteration are timed.
    """
    return (
        *_ALWAYS,
        *(f"{TAG}{phase}" for phase in (PHASES if phase_times else ())),
        *(f"Episode_Reward/{name}" for name in task.rewards),
        *(f"Episode_Termination/{name}" for name in task.terminations),
        *(f"Curriculum/{name}" for name in task.curricula),
        *(("Sim/overflow",) if overflow else ()),
        *(f"Eval/{name}" for name in (*EVALUATION_TAGS, *task.metrics)),
    )
