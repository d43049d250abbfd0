"""Compares replayed graphs with the same code run eagerly, and names the terms that differ.

A graph freezes what a term keeps on the host: a counter, a number drawn by NumPy, an attribute that
becomes another tensor. Sums whose order is left to chance differ a little, and may differ much in a
few environments; so what counts is whether many numbers differ by much.
"""

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from simtrain.env.base import host_state
from simtrain.env.env import Env
from simtrain.env.randomness import random_state

Record = dict[str, Tensor]
"""Values of a task's terms at a step, by name; copies, on the device."""


def record(env: Env) -> Record:
    """Commands, terminations, rewards, metrics and observations of the latest step."""
    terms = {f"commands.{name}": term.command for name, term in env.commands.terms.items()}
    for i, name in enumerate(env.terminations.names):
        terms[f"terminations.{name}"] = env.terminations.flags[:, i]
    for i, name in enumerate(env.rewards.names):
        terms[f"rewards.{name}"] = env.rewards.values[:, i]
    for i, name in enumerate(env.metrics.names):
        terms[f"metrics.{name}"] = env.metrics.values[:, i]
    for group, values in env.get_observations().items():
        for term, columns in env.observations.groups[group].slices.items():
            terms[f"observations.{group}.{term}"] = values.flatten(1)[:, columns]
    return {name: values.to(torch.float32, copy=True) for name, values in terms.items()}


def differing(replayed: Sequence[Record], eager: Sequence[Record]) -> list[str]:
    """The terms that differ at the first step at which any does; waits for the device."""
    for step, expected in zip(replayed, eager, strict=True):
        if names := [name for name in expected if differ(step[name], expected[name])]:
            return names
    return []


def differ(value: Tensor, expected: Tensor, smallest: float = 1e-5) -> Tensor:
    """Whether a tenth of the numbers differ by a hundredth of themselves, or of what is usual in
    `expected`, or by `smallest`, whichever is most; 0-d."""
    usual = expected.nan_to_num(0.0, 0.0, 0.0).abs().mean()
    allowed = 0.01 * torch.maximum(expected.abs(), usual) + smallest
    same = ((value - expected).abs() <= allowed) | (value == expected)
    same |= value.isnan() & expected.isnan()
    return (~same).float().mean() > 0.1


def host_values(env: Env, *, draws_on_device: bool) -> dict[str, Any]:
    """What terms keep on the host, and the generators there, by what to say if a value changes."""
    values = {
        f"{name} keeps {place} on the host": value
        for name, term in env.terms().items()
        for place, value in host_state(term, env).items()
    }
    names = {"numpy": "NumPy's random generator", "python": "Python's random generator"}
    if draws_on_device:
        names["torch"] = "PyTorch's random generator of the CPU"
    states = random_state(torch.device("cpu"))
    for key, name in names.items():
        values[f"a term uses {name}"] = json.dumps(states[key], default=Tensor.tolist)
    return values
