"""Whose evidence is set aside, by the scores and the number of replies alone; and who has to see a fall."""

from __future__ import annotations

import random

import pytest

from openclaw_rl.gates.wide_evidence import counter_checks, without_people
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store.lineage.live_scores import ScoredTurn
from openclaw_rl.store.trust.evidence import contradiction_of, find_floods
from openclaw_rl.store.trust.judge_trust import is_below_for_all
from openclaw_rl.store.trust.score_pairs import ScorePair, common_pairs

Scores = list[tuple[int, int]]


def pairs_of(scores: Scores, key: str = "ann", user: str = "") -> list[ScorePair]:
    """Pairs by judge and person; `scores`: oldest first."""
    pairs = [
        ScorePair(turn=f"{key} {user} {n}", person=(key, user), judge=judge, user=score)
        for n, (judge, score) in enumerate(scores)
    ]
    return pairs[::-1]


AGREE: Scores = [(1, 1), (-1, -1)]
OPPOSE: Scores = [(1, -1), (-1, 1)]


@pytest.mark.parametrize(
    ("scores", "code"),
    [
        (AGREE * 20, None),
        (OPPOSE * 5, None),
        (OPPOSE * 6, ReasonCode.CONTRADICTS_JUDGE),
        ([(1, 1), (-1, 1)] * 8, ReasonCode.ONE_SIDED),
        ([(1, -1), (-1, -1)] * 8, ReasonCode.ONE_SIDED),
        ([(1, 1)] * 19 + [(-1, 1)], None),
        (AGREE * 10 + OPPOSE * 10, ReasonCode.CHANGES_SIDES),
        (OPPOSE * 10 + AGREE * 10, ReasonCode.CHANGES_SIDES),
        (AGREE * 10 + OPPOSE * 2, None),
    ],
)
def test_a_person_is_named_by_the_scores(scores: Scores, code: ReasonCode | None) -> None:
    reason = contradiction_of(pairs_of(scores))
    assert (reason and reason.code) == code


def test_people_with_a_judge_that_is_often_wrong_are_seldom_named() -> None:
    """One hundred people who are right, and a judge that is right on 80% of their turns."""
    named = 0
    for seed in range(100):
        chance = random.Random(seed)
        scores = []
        for _ in range(60):
            score = 1 if chance.random() < 0.6 else -1
            scores.append((score if chance.random() < 0.8 else -score, score))
        named += contradiction_of(pairs_of(scores)) is not None
    assert named <= 2


def test_a_flood_is_what_is_far_more_than_the_person_in_the_middle() -> None:
    replies = {("ann", ""): 30, ("bob", ""): 40, ("eve", ""): 500, ("dan", ""): 90}
    (flood,) = find_floods(replies)
    assert (flood.person, flood.reason.code) == (("eve", ""), ReasonCode.FLOODS)
    assert (flood.part, flood.whole) == (300, 500)
    assert flood.weight == pytest.approx(0.4)
    assert find_floods({("ann", ""): 3, ("eve", ""): 5000}) == [], "two people: neither stands out"


def test_a_person_and_a_key_weigh_no_more_than_the_one_in_the_middle() -> None:
    many = pairs_of(AGREE * 100, "mallory")
    users = [pair for n in range(9) for pair in pairs_of(AGREE * 10, "app", f"user {n}")]
    few = [pair for key in ("ann", "bob", "eve") for pair in pairs_of(AGREE * 6, key)]
    counted = common_pairs([*many, *users, *few])
    keys = [pair.person[0] for pair in counted]
    assert {key: keys.count(key) for key in set(keys)} == {
        "mallory": 12,
        "app": 12,
        "ann": 12,
        "bob": 12,
        "eve": 12,
    }
    assert len(common_pairs(many)) == 200, "a person alone"


def test_no_one_key_decides_on_a_judge() -> None:
    opposed = {key: pairs_of(OPPOSE * 12, key) for key in ("ann", "bob", "eve")}
    users = [pair for n in range(5) for pair in pairs_of(OPPOSE * 12, "app", f"user {n}")]
    agreeing = pairs_of(AGREE * 12, "dan")
    assert not is_below_for_all(opposed["ann"], 0.0, alone=False)
    assert is_below_for_all(opposed["ann"], 0.0, alone=True)
    assert not is_below_for_all([*users, *agreeing], 0.0, alone=False)
    assert is_below_for_all(users, 0.0, alone=False), "users of the only key"
    assert is_below_for_all([*opposed["ann"], *opposed["bob"]], 0.0, alone=False)
    assert is_below_for_all([pair for one in opposed.values() for pair in one], 0.0, alone=False)


def score(key: str, satisfied: bool) -> ScoredTurn:
    return ScoredTurn(turn="t", version=1, satisfied=satisfied, person=(key, ""))


def test_a_fall_has_to_be_seen_without_those_who_speak_most_for_it() -> None:
    before = [score(key, True) for key in "abcdef"]
    after = [score("f", False)] * 9 + [score("e", False)] * 2 + [score(key, True) for key in "abcd"]
    third, loudest = counter_checks(before, after)
    assert third == {("f", ""), ("e", "")}
    assert loudest == {("f", "")}
    assert {one.person[0] for one in without_people(after, third)} == set("abcd")
    assert counter_checks([score("a", True)], [score("a", False)]) == []
