import math
import statistics

import pytest

from simtrain.training.evaluator import Estimate

# Tables of Student's t, two-sided 95 %.
TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 9: 2.262, 10: 2.228, 30: 2.042, 99: 1.984}


@pytest.mark.parametrize(("degrees", "t"), TABLE.items())
def test_a_mean_has_an_interval_by_the_tables_of_students_t(degrees, t):
    values = [float(i) for i in range(degrees + 1)]
    estimate = Estimate.of_mean(values)
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    assert estimate.high - estimate.value == pytest.approx(half, rel=1e-3)


def test_a_mean_has_an_interval_by_the_standard_error():
    estimate = Estimate.of_mean([1.0, 2.0, 3.0, 4.0])
    half = 3.182 * math.sqrt(5.0 / 3.0) / 2.0
    assert estimate.value == 2.5
    assert (estimate.low, estimate.high) == pytest.approx((2.5 - half, 2.5 + half), abs=1e-3)


def test_one_value_says_nothing_about_the_mean_and_a_nan_neither():
    assert Estimate.of_mean([3.0]) == Estimate(3.0, -math.inf, math.inf)
    estimate = Estimate.of_mean([1.0, math.nan])
    assert all(map(math.isnan, (estimate.value, estimate.low, estimate.high)))


def test_rates_have_wilsons_interval_also_at_the_ends():
    half = Estimate.of_rate(5, 10)
    assert (half.value, half.low, half.high) == pytest.approx((0.5, 0.2366, 0.7634), abs=1e-4)
    never, always = Estimate.of_rate(0, 10), Estimate.of_rate(10, 10)
    assert (never.low, never.high) == (0.0, pytest.approx(0.2775, abs=1e-4))
    assert (always.low, always.high) == (pytest.approx(0.7225, abs=1e-4), 1.0)
