"""Whether replayed graphs do what the same code does eagerly, and if not, which term is to blame.

A graph freezes what a term keeps on the host: a counter, a number drawn by NumPy, an attribute that
becomes another tensor. Sums whose order is left to chance differ a little, and may differ much in a
few environments; so what counts is whether many numbers differ by much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from simtrain.env.base import host_state
from simtrain.env.env import Env
from simtrain.env.randomness import random_state

_PART = 0.1
_RELATIVE = 0.01
_SMALLEST = 1e-5

Record = dict[str, Tensor]
"""What was seen at a step, by the name of the term that gave it; copies, on the device."""


def record(env: Env) -> Record:
    """What the terms of a task gave at the latest step."""
    rewards = {
        f"rewards.{name}": values.clone()
        for name, values in zip(env.rewards.names, env.rewards.values.unbind(1), strict=True)
    }
    ends = {
        f"terminations.{name}": flags.float()
        for name, flags in zip(
            env.terminations.names, env.terminations.flags.unbind(1), strict=True
        )
    }
    latest = env.get_observations()
    seen = {
        f"observations.{group}.{term}": latest[group][:, columns].clone()
        for group, parts in env.observations.groups.items()
        for term, columns in parts.slices.items()
    }
    asked = {
        f"commands.{name}": term.command.float().clone()
        for name, term in env.commands.terms.items()
    }
    return asked | ends | rewards | seen


def differing(replayed: Sequence[Record], eager: Sequence[Record]) -> list[str]:
    """The terms that differ at the first step at which any does; waits for the device."""
    for step, expected in zip(replayed, eager, strict=True):
        flags = torch.stack([differ(step[name], expected[name]) for name in expected])
        names = [name for name, flag in zip(expected, flags.tolist(), strict=True) if flag]
        if names:
            return names
    return []


def differ(value: Tensor, expected: Tensor, smallest: float = _SMALLEST) -> Tensor:
    """Whether more than a tenth of two tensors' numbers differ by more than a hundredth; 0-d.

    A hundredth of the number itself, or of what is usual in `expected`, or `smallest`.
    """
    usual = expected.nan_to_num(0.0, 0.0, 0.0).abs().mean()
    allowed = _RELATIVE * torch.maximum(expected.abs(), usual) + smallest
    same = ((value - expected).abs() <= allowed) | (value == expected)
    same |= value.isnan() & expected.isnan()
    return (~same).float().mean() > _PART


class HostState:
    """What an environment's terms keep on the host, at one moment."""

    def __init__(self, env: Env, *, draws_on_device: bool) -> None:
        """Note it.

        Args:
            env: whose terms are meant.
            draws_on_device: whether the environment's own random numbers come from the device's
                generator, so that nobody should use PyTorch's on the CPU.
        """
        self._numbers = {name: host_state(term, env) for name, term in env.terms().items()}
        random = random_state(torch.device("cpu"))
        self._generators = {
            "NumPy's random generator": _plain(random["numpy"]),
            "Python's random generator": _plain(random["python"]),
        }
        if draws_on_device:
            self._generators["PyTorch's random generator of the CPU"] = _plain(random["torch"])

    def changed_since(self, before: HostState) -> list[str]:
        """What a graph would freeze, by the names of terms."""
        found = [
            f"{name} keeps {place} on the host"
            for name, numbers in self._numbers.items()
            for place in numbers
            if before._numbers[name].get(place) != numbers[place]
        ]
        return found + [
            f"a term uses {name}"
            for name, state in self._generators.items()
            if state != before._generators[name]
        ]


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    return [_plain(item) for item in value] if isinstance(value, list) else value
