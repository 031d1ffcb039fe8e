"""Which log-probabilities a server gives is found out from three answers, and a difference says what to do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.engines.remote.logprob_convention import check_convention, infer_convention
from openclaw_rl.errors import EngineError
from openclaw_rl.types import Convention, Sampling

LOGITS = st.lists(st.floats(-8, 8), min_size=6, max_size=30, unique=True)


def _top(
    logits: np.ndarray, convention: Convention, temperature: float, cut: bool
) -> dict[int, float]:
    """The five likeliest as such a server tells them."""
    scaled = logits if convention == "raw" else logits / temperature
    order = np.argsort(-logits)[:5]
    logprobs = scaled - np.logaddexp.reduce(scaled)
    if cut and convention == "processed":
        logprobs = np.where(np.arange(len(logits)) == order[0], 0.0, -9999.0)
    return {int(i): float(logprobs[i]) for i in order}


@given(LOGITS, st.sampled_from(["scaled", "processed", "raw"]))
def test_the_convention_is_detected_from_three_answers(
    values: list[float], convention: Convention
) -> None:
    logits = np.array(values)
    found = infer_convention(
        _top(logits, convention, 1.0, cut=False),
        _top(logits, convention, 0.5, cut=False),
        _top(logits, convention, 1.0, cut=True),
    )
    top = np.sort(logits)[::-1]
    expected = convention if top[0] - top[4] >= 0.05 else None
    assert found == expected or abs(top[0] - top[4] - 0.05) < 1e-6


def test_alternatives_that_are_cut_off_may_be_missing() -> None:
    one, half = {1: -0.1, 2: -2.5}, {1: -0.01, 2: -4.8}
    assert infer_convention(one, half, {1: 0.0}) == "processed"
    assert infer_convention({1: 0.0}, {1: 0.0}, {1: 0.0}) is None


def test_a_difference_comes_with_advice() -> None:
    check_convention("processed", "processed", where="x", advice="")
    check_convention(None, "scaled", where="x", advice="")
    with pytest.raises(
        EngineError,
        match=r"at x returns raw .* expected processed .*Start it so\. Or set engine.logprob_convention to",
    ):
        check_convention("raw", "processed", where="x", advice="Start it so. ")


def test_raw_log_probabilities_train_at_temperature_one_only() -> None:
    assert Sampling(convention="raw").untrainable_reason() is None
    assert "raw log-probabilities at temperature 0.7" in (
        str(Sampling(convention="raw", temperature=0.7).untrainable_reason())
    )
    assert Sampling(convention="processed", temperature=0.7).untrainable_reason() is None
