"""Selection and mutation of a population, as functions of numbers: nothing is trained here.

All members compute the same decisions from the same gathered candidates, so that nobody has to
send them. Population-based training is that of Jaderberg et al., 2017
(https://arxiv.org/abs/1711.09846), the tournament that of AgileRL. Imports no torch, so that wrong
flags are found at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

Scale = Literal["linear", "log", "complement"]
Mutation = Literal["none", "hyper_parameters", "parameters", "architecture"]
MUTATIONS = get_args(Mutation)
SCALES: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "linear": (lambda value: value, lambda value: value),
    "log": (math.log, math.exp),
    "complement": (lambda value: math.log(1.0 - value), lambda x: 1.0 - math.exp(x)),
}
"""Scale -> the function of a value that is drawn evenly, and its inverse."""
FACTOR = 1.2
"""A mutated hyper-parameter is multiplied or divided by this."""
REDRAW = 0.1
"""Probability that a mutated hyper-parameter is drawn anew within its bounds."""
Values = dict[str, float]
"""Hyper-parameters: flag without dashes, such as ``ppo.entropy-coef`` -> value."""


@dataclass(frozen=True)
class HyperParameter:
    """A number of the configuration that evolves within bounds."""

    flag: str
    """As it is typed, without the two dashes."""
    low: float
    high: float
    scale: Scale = "linear"
    """Over what it is drawn evenly: its value, its logarithm, or the logarithm of 1 minus it."""
    is_whole: bool = False

    def draw(self, rng: np.random.Generator) -> float:
        """A value drawn within the bounds."""
        scaled, inverse = SCALES[self.scale]
        low, high = scaled(self.low), scaled(self.high)
        value = inverse(low + (high - low) * rng.random())
        return self._bounded(round(value) if self.is_whole else value)

    def mutated(self, value: float, rng: np.random.Generator) -> float:
        """`value` multiplied or divided by `FACTOR`, or drawn anew; within the bounds.

        With the scale ``complement`` that is done to 1 - `value`.
        """
        if rng.random() < REDRAW:
            return self.draw(rng)
        factor = FACTOR if rng.random() < 0.5 else 1.0 / FACTOR
        if self.scale == "complement":
            return self._bounded(1.0 - (1.0 - value) * factor)
        changed = value * factor
        if self.is_whole:  # one that is small changes, too
            changed = round(changed)
            changed = max(value + 1, changed) if factor > 1.0 else min(value - 1, changed)
        return self._bounded(changed)

    def _bounded(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        return int(value) if self.is_whole else value


@dataclass(frozen=True)
class Candidate:
    """A member as selection sees it; `fitness` and `low` are the larger the better."""

    fitness: float
    low: float
    """Lower end of the fitness's confidence interval."""
    age: int
    """Iterations since it was last replaced, or since the start."""
    learns: bool = True
    """Whether its losses are finite."""

    @property
    def is_sound(self) -> bool:
        """Whether it can win."""
        return self.learns and math.isfinite(self.fitness)

    @property
    def score(self) -> float:
        """The fitness, or less than any for one that cannot win."""
        return self.fitness if self.is_sound else -math.inf

    def leads(self, other: Candidate) -> bool:
        """Whether it is better than `other` by more than the noise."""
        return self.is_sound and (not other.is_sound or self.low > other.fitness)


@dataclass(frozen=True)
class Selection:
    """How members are selected."""

    kind: Literal["tournament", "truncation"] = "tournament"
    size: int = 2
    """Members that are drawn for a tournament."""
    share: float = 0.25
    """Of the worst, which copy from as many of the best, by truncation."""
    grace: int = 0
    """Iterations for which a member that was replaced is left alone."""

    def __call__(
        self, candidates: Sequence[Candidate], rng: np.random.Generator
    ) -> list[tuple[int, bool]]:
        """For each member its parent, itself or another, and whether the result is mutated.

        A member copies another only if that leads by more than the noise; else it stays itself. The
        best is not changed at all. A member that is not sound is replaced whatever its age.
        """
        order = sorted(range(len(candidates)), key=lambda i: candidates[i].score)
        best = order[-1]
        decisions = []
        for i, rival in enumerate(self._rivals(order, rng)):
            member = candidates[i]
            if rival is None or i == best or (member.is_sound and member.age < self.grace):
                decisions.append((i, False))
                continue
            if not (member.is_sound or candidates[rival].is_sound):
                rival = best
            decisions.append((rival if candidates[rival].leads(member) else i, True))
        return decisions

    def _rivals(self, order: Sequence[int], rng: np.random.Generator) -> list[int | None]:
        """Whom each member may copy; None for who is left alone. `order` is worst first."""
        count = len(order)
        if self.kind == "tournament":
            drawn = [rng.integers(count, size=self.size) for _ in order]
            return [max(map(int, members), key=order.index) for members in drawn]
        rivals: list[int | None] = [None] * count
        some = min(count // 2, max(1, math.ceil(self.share * count)))
        for i in order[:some]:
            rivals[i] = order[count - 1 - int(rng.integers(some))]
        return rivals


@dataclass(frozen=True)
class Decision:
    """A member after selection and mutation."""

    parent: int
    mutation: Mutation
    values: Values


def evolve(
    candidates: Sequence[Candidate],
    values: Sequence[Values],
    hyper_parameters: Sequence[HyperParameter],
    select: Selection,
    weights: Mapping[Mutation, float],
    rng: np.random.Generator,
) -> list[Decision]:
    """What becomes of each member, whose hyper-parameters now are `values`.

    `weights` are the relative frequencies of mutations.
    """
    kinds, shares = list(weights), np.array(list(weights.values()))
    decisions = []
    for parent, is_mutated in select(candidates, rng):
        mutation: Mutation = "none"
        becomes = dict(values[parent])
        if is_mutated:
            mutation = kinds[int(rng.choice(len(kinds), p=shares / shares.sum()))]
        if mutation == "hyper_parameters":
            becomes = {h.flag: h.mutated(becomes[h.flag], rng) for h in hyper_parameters}
        decisions.append(Decision(parent, mutation, becomes))
    return decisions
