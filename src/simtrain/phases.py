"""The phases that make up an iteration of training, in their order. Imports nothing heavy.

Every moment of an iteration is in exactly one of them, so that they add up to it.
"""

from __future__ import annotations

ROLLOUT = {
    "inference": "policy inference",
    "physics": "physics",
    "terminations": "terminations",
    "rewards": "rewards",
    "resets": "resets, events, commands",
    "observations": "observations",
    "storage": "storage",
    "rollout_graph": "whole steps, as CUDA graphs",
}
"""Phases of a step of the environments, and what a person calls them."""
UPDATE = {
    "advantage": "values and advantages",
    "mini_batches": "making mini-batches",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "update_graph": "whole mini-batches, as CUDA graphs",
}
"""Phases of learning from a rollout."""
RANKS = {
    "all_reduce": "all-reduce",
    "waiting": "waiting for the slowest rank",
}
"""What several ranks spend on each other, in all collectives of an iteration."""
BETWEEN = {
    "evaluation": "evaluation",
    "logging": "logging",
    "saving": "saving",
    "other": "other",
}
"""What comes between two iterations, and what is left."""

GROUPS = {"rollout": ROLLOUT, "update": UPDATE, "ranks": RANKS, "between": BETWEEN}
PHASES = {name: label for group in GROUPS.values() for name, label in group.items()}

TAG = "Perf/time/"
"""What the metric of a phase begins with; its name follows."""


def phase_tags(tags: list[str]) -> list[str]:
    """The tags among `tags` that tell the parts of an iteration's seconds.

    Those of the phases, or of rollout and update alone where a run logged no more than that.
    """
    phases = [tag for tag in tags if tag.startswith(TAG)]
    return phases or [t for t in tags if t.startswith("Perf/") and t.endswith("_time")]
