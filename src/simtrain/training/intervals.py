"""95 % confidence intervals: of means by Student's t, of rates by Wilson's score.

Student, "The probable error of a mean", 1908. Wilson, "Probable inference, the law of succession,
and statistical inference", 1927.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

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
    count = len(values)
    middle = statistics.fmean(values)
    if count == 1:
        return Estimate(middle, -math.inf, math.inf)
    if not all(map(math.isfinite, values)):
        return Estimate(middle, math.nan, math.nan)
    half = student_t(count - 1) * statistics.stdev(values, middle) / math.sqrt(count)
    return Estimate(middle, middle - half, middle + half)


def rate(happened: int, count: int) -> Estimate:
    """The rate of something that happened so many times of `count`, one or more."""
    z = statistics.NormalDist().inv_cdf((1.0 + CONFIDENCE) / 2.0)
    share = happened / count
    middle = (happened + z**2 / 2.0) / (count + z**2)
    half = z / (count + z**2) * math.sqrt(count * share * (1.0 - share) + z**2 / 4.0)
    # Exactly 0 and 1 at the ends, without what rounding leaves.
    low = middle - half if happened > 0 else 0.0
    return Estimate(share, low, middle + half if happened < count else 1.0)


@cache
def student_t(degrees_of_freedom: int) -> float:
    """What Student's t lies within, on either side of 0, with a probability of `CONFIDENCE`."""
    low, high = 1.0, 13.0
    while high - low > 1e-9:
        t = (low + high) / 2.0
        inside = _probability_within(t, degrees_of_freedom) < CONFIDENCE
        low, high = (t, high) if inside else (low, t)
    return low


def _probability_within(t: float, degrees_of_freedom: int) -> float:
    """P(-t < T < t), by Abramowitz and Stegun's finite series 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(degrees_of_freedom))
    odd = degrees_of_freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(odd, degrees_of_freedom - 1, 2):
        total += term
        term *= (k + 1) / (k + 2) * math.cos(angle) ** 2
    total *= math.sin(angle)
    return 2.0 / math.pi * (angle + total) if odd else total
