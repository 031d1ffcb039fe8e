"""Simulated streams of scores: falls are found soon, honest versions stay, and changed tastes cost one rollback."""

from __future__ import annotations

import random

import pytest
from benchmarks.watch_trial import (
    BATCH,
    SimulatedPolicy,
    daily_satisfaction,
    false_alarms,
    turns_until_found,
)

from openclaw_rl.store.lineage.live_scores import ScoredTurn
from openclaw_rl.train.satisfaction_watch import find_fall

pytestmark = pytest.mark.system


def test_a_poisoned_version_is_rolled_back_within_a_batch_of_live_turns() -> None:
    for seed in range(20):
        policy = SimulatedPolicy(lambda steps, _: 0.05 if steps >= 10 else 0.9, seed=seed)
        policy.run(10 * BATCH)
        assert (policy.line[-1], policy.rollbacks) == (10, [])
        policy.run(BATCH, look_every=1)
        [(_, head, fall)] = policy.rollbacks
        assert (head, policy.line[-1]) == (10, fall.last_good)
        assert 8 <= fall.last_good < 10, "chance may blame the version before, too"
        assert "turns under versions " in fall.describe()


def test_the_figures_of_the_guide_are_those_of_the_watch() -> None:
    """A few runs of `benchmarks.watch_trial`, which prints the figures of docs/guides/checkpoints.md."""
    found = [turns_until_found(10, seed) for seed in range(10)]
    assert all(turns is not None and 8 <= turns <= BATCH for turns in found)
    assert false_alarms(0) <= 2


def test_descendants_of_a_bad_version_are_rolled_back() -> None:
    policy = SimulatedPolicy(lambda steps, _: 0.1 if steps >= 30 else 0.9, seed=1, per_version=4)
    policy.run(160)
    assert policy.rollbacks[0][1] > 30
    assert policy.rollbacks[0][2].last_good == 29


def test_good_versions_are_not_rolled_back() -> None:
    """One hundred versions over twenty days whose satisfaction varies from day to day, twice."""
    alarms = []
    for seed in range(2):
        days = daily_satisfaction(seed, 20, spread=0.07)
        policy = SimulatedPolicy(lambda _, turn, days=days: days[turn // 80], seed=seed)  # type: ignore[misc]
        policy.run(100 * BATCH)
        alarms.append(len(policy.rollbacks))
    assert sum(alarms) <= 5


def test_a_slow_decline_is_found_although_no_version_causes_it() -> None:
    policy = SimulatedPolicy(lambda steps, _: max(0.0, 0.9 - 0.006 * steps), seed=2)
    policy.run(100 * BATCH)
    assert policy.rollbacks
    _, head, fall = policy.rollbacks[0]
    assert fall.last_good < head - 20
    assert policy.satisfaction(len(policy.line) - 1, 0) > 0.45


def test_a_changed_taste_costs_one_rollback_at_most() -> None:
    """Every version before the change displeases from then on, and those that are trained after it please again."""
    counts = []
    for seed in range(6):
        learned: dict[int, float] = {}

        def satisfaction(version: int, turn: int, learned: dict[int, float] = learned) -> float:
            learned.setdefault(version, 0.9 if turn < 400 else min(0.9, 0.1 + 0.002 * (turn - 400)))
            return learned[version] if turn < 400 or learned[version] < 0.9 or turn > 900 else 0.1

        policy = SimulatedPolicy(satisfaction, seed=seed)
        policy.run(800)
        counts.append(len(policy.rollbacks))
        assert policy.line[-1] > 25, "learning goes on"
    assert max(counts) <= 1
    assert sum(counts) >= 1, (
        "a fall of everything looks like the fault of the newest version at first"
    )


def test_the_reference_supports_the_rollback() -> None:
    few = [ScoredTurn(turn=str(n), version=0, satisfied=True) for n in range(4)]
    bad = [ScoredTurn(turn=f"bad {n}", version=1, satisfied=False) for n in range(40)]
    assert find_fall([*few, *bad], max_fall=0.15, error=0.05) is None
    assert find_fall([*bad, *few], max_fall=0.15, error=0.05) is None
    assert find_fall([], max_fall=0.15, error=0.05) is None


def test_a_test_continues_where_it_was_when_the_oldest_turns_are_left_out() -> None:
    chance = random.Random(3)
    good = [
        ScoredTurn(turn=f"a{n}", version=n // 16, satisfied=chance.random() < 0.9)
        for n in range(200)
    ]
    bad = [ScoredTurn(turn=f"b{n}", version=13, satisfied=False) for n in range(20)]
    falls = [
        find_fall([*good[skipped:], *bad], max_fall=0.15, error=0.05) for skipped in (0, 7, 60)
    ]
    assert len({fall.evidence for fall in falls if fall is not None}) == 1
