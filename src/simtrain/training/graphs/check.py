"""Compares replayed graphs with the same code run eagerly, and names the terms that differ.

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
"""Values of a task's terms at a step, by name; copies, on the device."""


def record(env: Env) -> Record:
    """Commands, terminations, rewards and observations of the latest step."""
    found = {f"commands.{name}": term.command for name, term in env.commands.terms.items()}
    for i, name in enumerate(env.terminations.names):
        found[f"terminations.{name}"] = env.terminations.flags[:, i]
    for i, name in enumerate(env.rewards.names):
        found[f"rewards.{name}"] = env.rewards.values[:, i]
    for group, values in env.get_observations().items():
        for term, columns in env.observations.groups[group].slices.items():
            found[f"observations.{group}.{term}"] = values[:, columns]
    return {name: values.to(torch.float32, copy=True) for name, values in found.items()}


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
    """Copies of what an environment's terms keep on the host, and of the generators there."""

    def __init__(self, env: Env, *, draws_on_device: bool) -> None:
        """Read it; also PyTorch's generator on the CPU if `env` draws its numbers on the device."""
        self._numbers = {name: host_state(term, env) for name, term in env.terms().items()}
        names = {"numpy": "NumPy's random generator", "python": "Python's random generator"}
        if draws_on_device:
            names["torch"] = "PyTorch's random generator of the CPU"
        states = random_state(torch.device("cpu"))
        self._generators = {name: _plain(states[key]) for key, name in names.items()}

    def changed_since(self, before: HostState) -> list[str]:
        """What a graph would freeze, by the names of terms."""
        found = [
            f"{name} keeps {place} on the host"
            for name, numbers in self._numbers.items()
            for place in numbers
            if before._numbers[name].get(place) != numbers[place]
        ]
        generators = self._generators.items()
        used = [name for name, state in generators if state != before._generators[name]]
        return found + [f"a term uses {name}" for name in used]


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    return [_plain(item) for item in value] if isinstance(value, list) else value
