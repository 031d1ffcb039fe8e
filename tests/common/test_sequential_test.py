"""The sequential test keeps its error probability at every time, and decides soon where the difference is large."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.common.statistics.sequential_test import Decision, MeanTest


def first_decision(
    differences: np.ndarray, margin: float, error: float
) -> tuple[Decision | None, int]:
    """The first decision of a test that is read after each difference, and the number of differences until then."""
    test = MeanTest(margin=margin, error=error)
    for difference in differences:
        test.add([float(difference)])
        if test.decision is not None:
            break
    return test.decision, test.count


def test_wrong_decisions_are_as_rare_as_stated() -> None:
    """At the border of both hypotheses, which is the worst case, over the whole length of a long run."""
    random = np.random.default_rng(0)
    for margin in (0.0, 0.1):
        draws = random.choice(
            [-1.0, 0.0, 1.0], p=[0.2 + margin / 2, 0.6, 0.2 - margin / 2], size=(300, 300)
        )
        found = [first_decision(row, margin, 0.05)[0] for row in draws]
        assert found.count("worse") <= 25  # 15 expected at most, 3 deviations
        assert found.count("not worse") <= 25


def test_a_large_difference_is_found_within_a_few_observations() -> None:
    assert first_decision(np.full(50, -1.0), 0.1, 0.05) == ("worse", 8)
    assert first_decision(np.full(50, 1.0), 0.1, 0.05) == ("not worse", 6)
    assert first_decision(np.zeros(500), 0.1, 0.05)[0] == "not worse"


@given(st.lists(st.floats(-1, 1), max_size=60), st.floats(0, 0.9))
def test_the_order_of_the_observations_does_not_matter(
    differences: list[float], margin: float
) -> None:
    forward, backward = MeanTest(margin=margin, error=0.1), MeanTest(margin=margin, error=0.1)
    forward.add(differences)
    backward.add(reversed(differences))
    assert forward.evidence_worse == pytest.approx(backward.evidence_worse, rel=1e-6)
    assert forward.evidence_not_worse == pytest.approx(backward.evidence_not_worse, rel=1e-6)


def test_values_that_are_no_difference_are_refused() -> None:
    with pytest.raises(ValueError, match="expected a difference in"):
        MeanTest(margin=0.1, error=0.05).add([1.5])
    with pytest.raises(ValueError, match="expected a difference in"):
        MeanTest(margin=0.1, error=0.05).add([float("nan")])
    with pytest.raises(ValueError, match="margin"):
        MeanTest(margin=1.0, error=0.05)
