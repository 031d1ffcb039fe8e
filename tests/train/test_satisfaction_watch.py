"""Simulated streams of scores: falls are found soon, honest versions stay, and changed tastes cost one rollback."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from openclaw_rl.store.lineage.live_scores import ScoredTurn
from openclaw_rl.train.satisfaction_watch import SETTLING_TURNS, SatisfactionFall, find_fall

BATCH = 16
Satisfaction = Callable[[int, int], float]
"""Maps (number of steps behind the version, number of turns so far) to the probability that a person is satisfied."""


class SimulatedPolicy:
    """Scored turns of a policy that publishes a version every `per_version` turns and rolls back as the watch says."""

    def __init__(self, satisfaction: Satisfaction, *, seed: int, per_version: int = BATCH) -> None:
        self.chance, self.satisfaction, self.per_version = random.Random(seed), satisfaction, per_version
        self.line, self.newest, self.turns = [0], 0, 0
        self.scores: list[ScoredTurn] = []
        self.begin = 0  # of the scores since the last rollback
        self.rollbacks: list[tuple[int, int, SatisfactionFall]] = []  # (number of turns, version, fall)

    def run(self, turns: int, *, look_every: int = 4) -> None:
        for _ in range(turns):
            version = self.line[-1]
            satisfied = self.chance.random() < self.satisfaction(len(self.line) - 1, self.turns)
            self.turns += 1
            self.scores.append(ScoredTurn(turn=f"turn {self.turns}", version=version, satisfied=satisfied))
            if self.turns % look_every == 0:
                self._look()
            if len(self.scores) - self.begin >= SETTLING_TURNS and self.turns % self.per_version == 0:
                self.newest += 1
                self.line.append(self.newest)

    def _look(self) -> None:
        fall = find_fall(self.scores[self.begin :], max_fall=0.15, error=0.05)
        if fall is None:
            return
        self.rollbacks.append((self.turns, self.line[-1], fall))
        self.line = [version for version in self.line if version <= fall.last_good]
        kept = set(self.line)
        self.scores = [score for score in self.scores if score.version in kept]
        self.begin = len(self.scores)


def daily_noise(seed: int, mean: float = 0.85, spread: float = 0.07) -> Sequence[float]:
    chance = random.Random(f"day {seed}")
    return [min(0.98, max(0.02, chance.gauss(mean, spread))) for _ in range(200)]


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


def test_its_descendants_go_with_it() -> None:
    policy = SimulatedPolicy(lambda steps, _: 0.1 if steps >= 30 else 0.9, seed=1, per_version=4)
    policy.run(160)
    assert policy.rollbacks[0][1] > 30
    assert policy.rollbacks[0][2].last_good == 29


def test_honest_versions_stay() -> None:
    """One hundred versions over twenty days whose satisfaction varies from day to day, twice."""
    alarms = []
    for seed in range(2):
        days = daily_noise(seed)
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
    assert sum(counts) >= 1, "a fall of everything looks like the fault of the newest version at first"


def test_the_reference_supports_the_rollback() -> None:
    few = [ScoredTurn(turn=str(n), version=0, satisfied=True) for n in range(4)]
    bad = [ScoredTurn(turn=f"bad {n}", version=1, satisfied=False) for n in range(40)]
    assert find_fall([*few, *bad], max_fall=0.15, error=0.05) is None
    assert find_fall([*bad, *few], max_fall=0.15, error=0.05) is None
    assert find_fall([], max_fall=0.15, error=0.05) is None


def test_a_test_continues_where_it_was_when_the_oldest_turns_are_left_out() -> None:
    chance = random.Random(3)
    good = [ScoredTurn(turn=f"a{n}", version=n // 16, satisfied=chance.random() < 0.9) for n in range(200)]
    bad = [ScoredTurn(turn=f"b{n}", version=13, satisfied=False) for n in range(20)]
    falls = [find_fall([*good[skipped:], *bad], max_fall=0.15, error=0.05) for skipped in (0, 7, 60)]
    assert len({fall.evidence for fall in falls if fall is not None}) == 1
