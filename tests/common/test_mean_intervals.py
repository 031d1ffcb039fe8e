"""Intervals of a mean hold the true mean as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from openclaw_rl.common.statistics.mean_intervals import bootstrap_interval, difference_interval


@pytest.mark.parametrize(
    ("chances", "number"), [((0.1, 0.6, 0.3), 12), ((0.0, 0.95, 0.05), 20), ((0.45, 0.1, 0.45), 60)]
)
def test_the_interval_of_differences_covers_the_mean(
    chances: tuple[float, float, float], number: int
) -> None:
    values, rng = (-1.0, 0.0, 1.0), np.random.default_rng(3)
    mean = float(np.dot(values, chances))
    missed = 0
    for _ in range(200):
        low, high = difference_interval(rng.choice(values, size=number, p=chances).tolist())
        missed += not low <= mean <= high
    assert missed <= 10


def test_equal_differences_still_leave_room_that_shrinks_with_their_number() -> None:
    few, many = difference_interval([0.0] * 6), difference_interval([0.0] * 200)
    assert few[0] < -0.4
    assert few[1] > 0.4
    assert many[1] < 0.05
    assert difference_interval([1.0] * 30)[0] > 0.5
    assert difference_interval([]) == (-1.0, 1.0)
    assert difference_interval([0.0012] * 50_000) == pytest.approx((0.0012, 0.0012)), (
        "between two points of the grid"
    )


def test_the_bootstrap_covers_the_mean_of_skewed_values() -> None:
    rng = np.random.default_rng(4)
    missed = 0
    for _ in range(40):
        low, high = bootstrap_interval(rng.geometric(0.2, size=30).tolist())
        missed += not low <= 5.0 <= high
    assert missed <= 6
    assert bootstrap_interval([7.0]) == (7.0, 7.0)
