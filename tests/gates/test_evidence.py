"""What the gate concludes from differences."""

from __future__ import annotations

import numpy as np
import pytest

from openclaw_rl.gates.evidence import (
    MAX_OUTLIER_DISTANCE,
    MIN_COUNT,
    Evidence,
    decide,
    disagreement_reason,
    likelihood_difference,
    outlier_distance,
    outlier_reason,
    verdict_agreement,
)
from openclaw_rl.reasons import Reason


def kind(*differences: float, is_complete: bool = False, margin: float = 0.1) -> Evidence:
    made = Evidence("held_out", "held-out turns", margin, 0.05, is_complete=is_complete)
    made.add(differences)
    return made


def test_a_clear_fall_is_refused_early_with_its_figures() -> None:
    decision, reason = decide([kind(), kind(*[-0.8] * 12)], is_spent=False)
    assert decision == "reject"
    assert "worse than the head in held-out turns" in str(reason)
    assert "-0.80 over 12" in str(reason)


def test_a_clear_gain_is_promoted_early_and_only_if_every_kind_that_grows_agrees() -> None:
    good = kind(*[0.5] * 20)
    assert decide([good], is_spent=False) == ("promote", None)
    assert decide([good, kind(0.0)], is_spent=False) == (None, None)
    assert decide([good, kind(0.0, is_complete=True)], is_spent=False) == ("promote", None)
    assert decide([], is_spent=False) == (None, None), (
        "without evidence it waits for the budget to be spent"
    )


def test_a_spent_budget_promotes_unless_a_mean_is_below_the_margin() -> None:
    few, many = [-0.2] * (MIN_COUNT - 1), [-0.2] * MIN_COUNT
    assert decide([kind(*few)], is_spent=True)[0] == "promote", "too few to say anything"
    assert decide([kind(*many)], is_spent=True)[0] == "reject"
    assert decide([kind(*many)], is_spent=False)[0] is None
    assert decide([kind(*many, is_complete=True)], is_spent=False)[0] == "reject", (
        "no more of it will come"
    )
    assert decide([kind(*many, margin=0.3)], is_spent=True)[0] == "promote"
    one_of_eight = [-1.0] + [0.0] * (MIN_COUNT - 1)
    assert decide([kind(*one_of_eight)], is_spent=True)[0] == "promote", "within the standard error"


def test_a_change_of_likelihood_is_squashed_and_counts_trainable_tokens_only() -> None:
    before, mask = np.full(4, -1.0, np.float32), np.array([True, True, False, False])

    def difference(*change: float) -> float | None:
        return likelihood_difference(before + np.array(change, np.float32), before, mask)

    assert difference(0.02, 0.02, -9, -9) == pytest.approx(np.tanh(1), rel=1e-3)
    assert difference(-50, -50, 0, 0) == pytest.approx(-1)
    assert difference(-np.inf, 0, 0, 0) == -1.0, "an impossible reply is the worst one"
    assert likelihood_difference(before, before, np.zeros(4, bool)) is None


def test_praise_of_unlikely_replies_is_refused() -> None:
    held_out = [-0.5, -0.3] * MIN_COUNT
    assert outlier_distance([-0.4], held_out) == pytest.approx(0.0)
    distance = outlier_distance([-4.0, -3.0], held_out)
    assert distance is not None
    assert distance > MAX_OUTLIER_DISTANCE
    assert "praised replies of its batch" in str(outlier_reason(distance, is_retry=False))
    assert outlier_reason(MAX_OUTLIER_DISTANCE, is_retry=False) is None
    assert outlier_reason(MAX_OUTLIER_DISTANCE, is_retry=True), (
        "turns of a refused batch are suspected"
    )
    assert outlier_distance([], held_out) is None
    assert outlier_distance([-9.0], held_out[: MIN_COUNT - 1]) is None


def test_contradicting_verdicts_are_refused() -> None:
    assert verdict_agreement([1, -1], [0.1, -0.1]) == pytest.approx(1.0, abs=1e-3)
    inverted = verdict_agreement([1, 1, -1, -1], [-0.1, -0.1, 0.1, 0.1])
    assert "contradict what the head has learned: agreement -1.00 over 4" in str(
        disagreement_reason(inverted, 4, is_suspect=False)
    )
    assert (
        disagreement_reason(verdict_agreement([1, 1, 1, -1], [0.1] * 4), 4, is_suspect=False)
        is None
    ), "one is wrong"
    assert disagreement_reason(inverted, 1, is_suspect=False) is None, (
        "one complaint is no contradiction"
    )
    assert disagreement_reason(inverted, 1, is_suspect=True)
    assert disagreement_reason(0.0, 1, is_suspect=True), "each suspected turn has to agree"
    assert disagreement_reason(0.1, 1, is_suspect=True) is None
    assert disagreement_reason(verdict_agreement([], []), 0, is_suspect=True) is None


def test_twenty_probes_decide_on_a_clear_fall() -> None:
    """Stated in docs/concepts/gate.md: three of twenty newly wrong are promoted, four are rejected."""

    def decide_with(wrong: int, count: int = 20) -> tuple[str | None, Reason | None]:
        kind = Evidence("correctness", "answers to probes", 0.1, 0.05)
        kind.add([-1.0] * wrong + [0.0] * (count - wrong))
        return decide([kind], is_spent=count == 20)

    assert decide_with(3) == ("promote", None)
    assert decide_with(4)[0] == "reject"
    assert decide_with(0, count=43) == (None, None)
    assert decide_with(0, count=44) == ("promote", None)
