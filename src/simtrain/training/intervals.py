"""95 % confidence intervals: of means by Student's t, of rates by Wilson's score (SciPy)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A number estimated from episodes, and the interval that holds the true one."""

    value: float
    low: float
    """Lower bound; -inf if nothing is known."""
    high: float
    """Upper bound; inf if nothing is known."""


def mean(values: Sequence[float]) -> Estimate:
    """The mean of independent values, one or more."""
    value = statistics.fmean(values)
    if len(values) == 1:
        return Estimate(value, -math.inf, math.inf)
    if not all(map(math.isfinite, values)):
        return Estimate(value, math.nan, math.nan)
    from scipy.stats import t

    error = statistics.stdev(values, value) / math.sqrt(len(values))
    half = error * float(t.ppf((1.0 + CONFIDENCE) / 2.0, len(values) - 1))
    return Estimate(value, value - half, value + half)


def rate(happened: int, count: int) -> Estimate:
    """The rate of something that happened so many times of `count`, one or more."""
    from scipy.stats import binomtest

    interval = binomtest(happened, count).proportion_ci(CONFIDENCE, "wilson")
    return Estimate(happened / count, float(interval.low), float(interval.high))
