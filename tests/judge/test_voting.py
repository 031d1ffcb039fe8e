"""Majority over votes, as properties."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.judge.voting import distinct_hints, hints_of_majority, majority_score
from openclaw_rl.types import Vote

ANSWERS = st.sampled_from(
    [*(Vote(score=score) for score in (1, 0, -1, None)), Vote(score=None, error="nonsense")]
)
VOTES = st.lists(ANSWERS, min_size=1, max_size=9)
THRESHOLDS = st.floats(0, 1)


def usable(votes: list[Vote]) -> list[int | None]:
    return [vote.score for vote in votes if vote.error is None]


@settings(max_examples=100)
@given(VOTES.filter(usable), THRESHOLDS)
def test_a_score_has_at_least_the_threshold_and_more_than_any_other(
    votes: list[Vote], share: float
) -> None:
    majority = majority_score(votes, share)
    counts = Counter(usable(votes))
    winners = [
        value
        for value, count in counts.items()
        if count / counts.total() >= share
        and all(count > other for v, other in counts.items() if v != value)
    ]
    assert winners == ([] if majority.code is not None else [majority.score])
    assert majority.score is None or winners


@settings(max_examples=100)
@given(VOTES.filter(usable), THRESHOLDS, st.randoms(use_true_random=False), st.integers(0, 4))
def test_order_and_unusable_votes_do_not_matter(
    votes: list[Vote], share: float, order, more: int
) -> None:  # type: ignore[no-untyped-def]
    shuffled = [*votes, *[Vote(score=None, error="nonsense")] * more]
    order.shuffle(shuffled)
    assert majority_score(shuffled, share).score == majority_score(votes, share).score


@settings(max_examples=100)
@given(VOTES.filter(usable), THRESHOLDS)
def test_inverted_scores_invert_the_verdict(votes: list[Vote], share: float) -> None:
    score = majority_score(votes, share).score
    turned = [replace(vote, score=None if vote.score is None else -vote.score) for vote in votes]
    assert majority_score(turned, share).score == (None if score is None else -score)


def test_no_usable_vote_is_a_failure_not_a_score() -> None:
    with pytest.raises(ValueError, match="at least one usable vote"):
        majority_score([Vote(score=None, error="nonsense")] * 3, 0.5)


@pytest.mark.parametrize(
    ("scores", "threshold", "expected", "words"),
    [
        ([1, 1, -1], 0.5, 1, "2 of 3"),
        ([1, 1, -1], 2 / 3, 1, "2 of 3"),
        ([1, 1, -1], 0.67, None, "at least 0.67"),
        ([1, -1], 0.0, None, "tie"),
        ([0, 0, 1], 0.5, 0, "+0"),
        ([1, 0, -1], 0.3, None, "tie"),
        ([1, 1, 0, -1, -1], 0.3, None, "tie"),
        ([1, 1, 1, -1, 0], 0.6, 1, "3 of 5"),
        ([1, 1, -1, 0, 0], 0.6, None, "tie"),
        ([1, 1, -1, 0, None], 0.6, None, "at least 0.6 of 5"),
        ([None, None, 1], 0.5, None, "2 of 3 usable votes say no evidence"),
        ([None, 1], 0.5, None, "a tie (+1: 1, no evidence: 1)"),
        ([0, None, 0], 0.5, 0, "+0"),
        ([-1], 1.0, -1, "1 of 1"),
        ([1, 1, 1, 1, -1], 1.0, None, "at least 1"),
    ],
)
def test_examples(
    scores: list[int | None], threshold: float, expected: int | None, words: str
) -> None:
    majority = majority_score([Vote(score=value) for value in scores], threshold)
    assert majority.score == expected
    assert words in majority.reason
    assert (majority.code is None) is not majority.reason.startswith("abstained")


def test_hints_are_distinct_in_meaning_and_in_order() -> None:
    hints = [
        "Keep answers short.",
        " keep  answers short",
        None,
        "Use a formal tone.",
        "",
        "KEEP ANSWERS SHORT!",
    ]
    assert distinct_hints(hints) == ("Keep answers short.", "Use a formal tone.")


def test_only_votes_that_agree_with_the_verdict_give_hints() -> None:
    votes = [
        Vote(score=-1, hint="Be brief."),
        Vote(score=1, hint="Go on so."),
        Vote(score=None, error="x"),
        Vote(score=-1),
    ]
    assert hints_of_majority(votes, -1) == ("Be brief.",)
    assert hints_of_majority(votes, None) == ()
