"""Names of the metrics that training logs, and of an iteration's phases, which add up to it."""

from __future__ import annotations

from collections.abc import Mapping

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


def is_complete(metrics: Mapping[str, float], tag: str = RETURN) -> bool:
    """Whether a number over finished episodes is one over all environments' yet.

    Short episodes end first: until every environment has finished one, their means lie. Other
    numbers are always complete, and those of runs that did not log ``Train/finished_envs``.
    """
    return not of_episodes(tag) or metrics.get(FINISHED_ENVS, 1.0) >= 1.0


def of_episodes(tag: str) -> bool:
    """Whether a metric is a mean over the episodes that finished in training."""
    return tag in (RETURN, LENGTH) or tag.startswith("Episode_")


def phase_tags(tags: list[str]) -> list[str]:
    """The tags of an iteration's parts, s: phases, or rollout and update if no more was logged."""
    phases = [tag for tag in tags if tag.startswith(TAG)]
    return phases or [t for t in tags if t.startswith("Perf/") and t.endswith("_time")]
