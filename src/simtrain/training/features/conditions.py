"""Conditions on metrics that end training, from their flags. Imports nothing heavy."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass

from simtrain.config.metric_tags import TaskTerms, evaluation_names, is_complete
from simtrain.config.train import TrainConfig
from simtrain.errors import ConfigError, did_you_mean

_SIGNS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
_COMPARISON = re.compile(r"\s*([^<>=\s]+)\s*([<>]=?)\s*([^<>=\s]+)\s*")
_OTHER_NAMES = {"fell": "failure_rate"}


@dataclass(frozen=True)
class Comparison:
    """A metric, by its tag, that must be below or above a value."""

    tag: str
    sign: str
    value: float

    @property
    def name(self) -> str:
        """The metric's, as evaluations have it."""
        return self.tag.removeprefix("Eval/")

    def holds(self, metrics: Mapping[str, float]) -> bool:
        """Whether an iteration's metrics fulfil it; not a missing, incomplete or NaN one."""
        known = self.tag in metrics and is_complete(metrics, self.tag)
        return known and _SIGNS[self.sign](metrics[self.tag], self.value)

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{self.value:g}"


@dataclass(frozen=True)
class StopCondition:
    """Comparisons that must all hold for training to end, and how they were typed."""

    flag: str
    comparisons: tuple[Comparison, ...]

    def holds(self, metrics: Mapping[str, float]) -> bool:
        """Whether an iteration's metrics fulfil all of them."""
        return all(comparison.holds(metrics) for comparison in self.comparisons)

    def __str__(self) -> str:
        if self.flag == "--until":
            return f'--until "{" and ".join(map(str, self.comparisons))}"'
        (one,) = self.comparisons
        tag = "" if self.flag == "--stop-at-return" else f" {one.tag}"
        return f"{self.flag}{tag} {one.value:g}"


def stop_conditions(config: TrainConfig) -> tuple[StopCondition, ...]:
    """The conditions of which any one ends training; ConfigError for --until if it is none."""
    found: list[StopCondition] = []
    if (value := config.stop_at_return) is not None:
        of_return = Comparison("Eval/mean_return", ">=", value)
        found.append(StopCondition("--stop-at-return", (of_return,)))
    for flag, sign, pairs in (("at", ">=", config.stop_at), ("below", "<=", config.stop_below)):
        found += [StopCondition(f"--stop-{flag}", (Comparison(t, sign, v),)) for t, v in pairs]
    if config.until is not None:
        found.append(StopCondition("--until", parse_until(config.until, config.env)))
    return tuple(found)


def parse_until(text: str, task: TaskTerms) -> tuple[Comparison, ...]:
    """The comparisons of ``lin_vel_error<0.1 and fell<0.02``; ConfigError that lists the metrics.

    ``fell`` stands for ``failure_rate``, unless the task has a metric of that name.
    """
    names, comparisons = evaluation_names(task), []
    for part in re.split(r"\band\b", text):
        match = _COMPARISON.fullmatch(part)
        if match is None or not _is_finite(match[3]):
            example = '"mean_return>45 and failure_rate<0.02"'
            raise ConfigError(f"--until is {text!r}; it must be comparisons such as {example}")
        name = match[1] if match[1] in names else _OTHER_NAMES.get(match[1], match[1])
        if name not in names:
            there = f"evaluations of the task give {', '.join(names)} (fell is failure_rate)"
            raise ConfigError(f"--until: no metric {name!r}{did_you_mean(name, names)}; {there}")
        comparisons.append(Comparison(f"Eval/{name}", match[2], float(match[3])))
    return tuple(comparisons)


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
