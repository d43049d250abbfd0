"""Names of the metrics that training logs, and of an iteration's phases, which add up to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simtrain.env.cfg import TaskCfg

GROUPS = {
    "rollout": {  # a step of the environments
        "inference": "policy inference",
        "physics": "physics",
        "terminations": "terminations",
        "rewards": "rewards",
        "resets": "resets, events, commands",
        "observations": "observations",
        "storage": "storage",
        "rollout_graph": "whole steps, as CUDA graphs",
    },
    "update": {  # learning from a rollout
        "advantage": "values and advantages",
        "mini_batches": "making mini-batches",
        "forward": "forward",
        "backward": "backward",
        "optimizer": "optimizer",
        "update_graph": "whole mini-batches, as CUDA graphs",
    },
    # All collectives of an iteration.
    "ranks": {"all_reduce": "all-reduce", "waiting": "waiting for the slowest rank"},
    # Between two iterations, and the remaining time.
    "between": {name: name for name in ("evaluation", "logging", "saving", "other")},
}
"""Group -> its phases, and how a table calls them."""
PHASES = {name: label for group in GROUPS.values() for name, label in group.items()}
TAG = "Perf/time/"  # prefix of the metric with a phase's seconds
EVALUATION_TAGS = ("mean_return", "mean_episode_length", "failure_rate", "iteration")
"""Results of every evaluation, logged as ``Eval/<name>``; a task's own metrics follow."""

STEP_REWARD, FINISHED_ENVS = "Train/mean_step_reward", "Train/finished_envs"
RETURN, LENGTH, SPEED = "Train/mean_reward", "Train/mean_episode_length", "Perf/total_fps"
REWARDS = "Episode_Reward/"  # prefix of the metric with a term's mean
PPO_METRICS = tuple(f"Loss/{name}" for name in ("value", "surrogate", "entropy", "kl"))
RND_METRICS = ("Loss/rnd", "Rnd/mean_intrinsic_reward")
DISTILLATION_METRICS = ("Loss/behavior",)
_ALWAYS = (
    *(STEP_REWARD, RETURN, LENGTH, FINISHED_ENVS),
    *("Loss/learning_rate", "Policy/mean_std", "Sim/nan_resets"),
    *(SPEED, "Perf/collection_time", "Perf/learning_time"),
)


def metric_tags(
    task: TaskCfg,
    *,
    overflow: bool,
    phase_times: bool = True,
    algorithm: Sequence[str] = PPO_METRICS,
) -> tuple[str, ...]:
    """Every tag of a training run, evaluation's last; `overflow`: whether the engine reports it."""
    return (
        *_ALWAYS,
        *algorithm,
        *(f"{TAG}{phase}" for phase in (PHASES if phase_times else ())),
        *(f"{REWARDS}{name}" for name in task.rewards),
        *(f"Episode_Termination/{name}" for name in task.terminations),
        *(f"Curriculum/{name}" for name in task.curricula),
        *(("Sim/overflow",) if overflow else ()),
        *(f"Eval/{name}" for name in (*EVALUATION_TAGS, *task.metrics)),
    )


def is_complete(metrics: Mapping[str, float], tag: str = RETURN) -> bool:
    """Whether a number over finished episodes is one over all environments' yet.

    Short episodes end first: until every environment has finished one, their means lie. Other
    numbers are always complete, and those of runs that did not log ``Train/finished_envs``.
    """
    return not of_episodes(tag) or metrics.get(FINISHED_ENVS, 1.0) >= 1.0


def of_episodes(tag: str) -> bool:
    """Whether a metric is a mean over the episodes that finished in training."""
    return tag in (RETURN, LENGTH) or tag.startswith("Episode_")


def evaluation_names(task: TaskCfg) -> tuple[str, ...]:
    """The estimates of a task's evaluations, logged as ``Eval/<name>``."""
    return (*(name for name in EVALUATION_TAGS if name != "iteration"), *task.metrics)


def phase_tags(tags: list[str]) -> list[str]:
    """The tags of an iteration's parts, s: phases, or rollout and update if no more was logged."""
    phases = [tag for tag in tags if tag.startswith(TAG)]
    return phases or [t for t in tags if t.startswith("Perf/") and t.endswith("_time")]
