"""What people say under a canary decides on it."""

from __future__ import annotations

import numpy as np
import pytest
from tests.store.world import policy

from openclaw_rl.gates.canary import CanaryEvidence, score_limit
from openclaw_rl.settings.schema_gate import GateConfig
from openclaw_rl.store.lineage.live_scores import ScoredTurn

HEAD, CANDIDATE = 4, 7


def scores(new: list[bool], old: list[bool]) -> list[ScoredTurn]:
    said = (
        [(CANDIDATE, good) for good in new]
        + [(HEAD, good) for good in old]
        + [(HEAD - 1, False)] * 5
    )
    return [
        ScoredTurn(turn=str(n), version=version, satisfied=good)
        for n, (version, good) in enumerate(said)
    ]


def evidence(
    new: list[bool], old: list[bool], share: float = 0.2, **settings: float
) -> CanaryEvidence:
    return CanaryEvidence(scores(new, old), policy(CANDIDATE, HEAD), share, GateConfig(**settings))


def test_a_clear_canary_is_decided_early() -> None:
    worse = evidence([False] * 20, [True] * 80).decide(0.0)
    assert worse is not None
    assert not worse.promotes
    assert str(worse.reason) == (
        "canary: people were satisfied with 0 of its 20 scored turns and with 80 of 80 of the head"
    )
    better = evidence([True] * 20, [False] * 80).decide(0.0)
    assert better is not None
    assert (better.promotes, better.metrics["gate/canary"]) == (True, 1.0)
    assert evidence([True, False] * 4, [True, False] * 16).decide(0.0) is None


def test_one_person_rejects_no_canary_for_others() -> None:
    def score(version: int, satisfied: bool, key: str) -> ScoredTurn:
        return ScoredTurn(turn="t", version=version, satisfied=satisfied, person=(key, ""))

    of_head = [score(HEAD, True, key) for key in ("ann", "bob", "eve", "mallory") * 20]
    loud = [score(CANDIDATE, False, "mallory") for _ in range(20)]
    calm = [score(CANDIDATE, True, key) for key in ("ann", "bob", "eve") * 3]
    several = [score(CANDIDATE, False, key) for key in ("ann", "bob", "eve", "mallory") * 8]

    def decide(new: list[ScoredTurn], seconds: float) -> bool | None:
        candidate = policy(CANDIDATE, HEAD)
        found = CanaryEvidence([*new, *of_head], candidate, 0.2, GateConfig()).decide(seconds)
        return None if found is None else found.promotes

    alone = [*loud, *(score(HEAD, True, "mallory") for _ in range(80))]
    for is_shared, promotes in ((False, False), (True, None)):
        candidate = policy(CANDIDATE, HEAD)
        evidence = CanaryEvidence(alone, candidate, 0.2, GateConfig(), is_shared=is_shared)
        decided = evidence.decide(0.0)
        assert (decided and decided.promotes) is promotes, "others are answered, who said nothing"
    assert decide(loud, 0.0) is None
    assert decide([*loud, *calm], 1e9) is True
    assert decide(several, 0.0) is False


def test_canary_scores_are_compared_by_the_share_of_conversations() -> None:
    assert evidence([True] * 9, [True] * 8).compared == 2, (
        "a fifth of the conversations: four for one"
    )
    assert evidence([True] * 9, [True] * 8, share=0.5).compared == 8


@pytest.mark.parametrize(("good", "promotes"), [(5, True), (2, False)])
def test_an_undecided_canary_ends_by_its_mean(good: int, promotes: bool) -> None:
    """The mean decides, within gate.max_fall; without any score nothing speaks against it."""
    new, old = [n < good for n in range(10)], [n % 2 == 0 for n in range(40)]
    assert evidence(new, old).decide(3600.0) is None
    for decided in (
        evidence(new, old, canary_turns=10).decide(0.0),
        evidence(new, old, canary_hours=1.0).decide(3600),
    ):
        assert decided is not None
        assert decided.promotes is promotes
    silent = evidence([], [], canary_hours=1.0).decide(3600)
    assert silent is not None
    assert silent.promotes


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2, 0.5, 0.9])
def test_all_scores_that_a_canary_needs_are_read(share: float) -> None:
    """Of fewer scores than those since it began, each look would compare others, and it would never have enough."""
    needed, settings = 100, GateConfig(canary_turns=100)
    count = score_limit(share, settings)
    new = round(count * share)
    found = evidence([True] * new, [True] * (count - new), share, canary_turns=100)
    assert found.compared >= needed


def test_false_alarms_stay_within_the_stated_error() -> None:
    """A candidate that is as good as the head, looked at after each turn."""
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(200):
        new, old = (rng.random(60) < 0.7).tolist(), (rng.random(240) < 0.7).tolist()
        looks = (
            evidence(new[:n], old[: 4 * n], canary_turns=999).decide(0.0) for n in range(5, 61, 5)
        )
        first = next((decided for decided in looks if decided is not None), None)
        alarms += first is not None and not first.promotes
    assert alarms <= 10
