"""How soon the watch of live satisfaction finds a fall, and how often it rolls back honest versions. Simulated.

    python -m benchmarks.watch_trial

People are satisfied by chance, with a probability that depends on the version or on the day. The watch's own function
decides after each scored turn, with the default settings; a version is published every 16 turns.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Sequence

from openclaw_rl.settings.load import Config
from openclaw_rl.store.lineage.live_scores import ScoredTurn
from openclaw_rl.train.satisfaction_watch import SETTLING_TURNS, SatisfactionFall, find_fall

# Scored turns between two versions.
BATCH = 16
DAY = 80  # scored turns of a day
# Shares of satisfied turns.
GOOD = 0.9
POISONED = 0.05
HONEST_VERSIONS = 100
Satisfaction = Callable[[int, int], float]
"""Maps (number of steps behind the version, number of turns so far) to the probability that a person is satisfied."""


class SimulatedPolicy:
    """Scored turns of a policy that publishes a version every `per_version` turns and rolls back as the watch says."""

    def __init__(self, satisfaction: Satisfaction, *, seed: int, per_version: int = BATCH) -> None:
        self.chance = random.Random(seed)
        self.satisfaction = satisfaction
        self.per_version = per_version
        self.line = [0]
        self.newest = 0
        self.turns = 0
        self.scores: list[ScoredTurn] = []
        # Of the scores since the last rollback.
        self.begin = 0
        # (number of turns, version, fall).
        self.rollbacks: list[tuple[int, int, SatisfactionFall]] = []
        self._gate = Config().gate

    def run(self, turns: int, *, look_every: int = 4) -> None:
        """Answer so many turns; ask the watch after every `look_every` of them."""
        for _ in range(turns):
            version = self.line[-1]
            satisfied = self.chance.random() < self.satisfaction(len(self.line) - 1, self.turns)
            self.turns += 1
            self.scores.append(
                ScoredTurn(turn=f"turn {self.turns}", version=version, satisfied=satisfied)
            )
            if self.turns % look_every == 0:
                self._look()
            if (
                len(self.scores) - self.begin >= SETTLING_TURNS
                and self.turns % self.per_version == 0
            ):
                self.newest += 1
                self.line.append(self.newest)

    def _look(self) -> None:
        fall = find_fall(
            self.scores[self.begin :], max_fall=self._gate.max_fall, error=self._gate.error
        )
        if fall is None:
            return
        self.rollbacks.append((self.turns, self.line[-1], fall))
        self.line = [version for version in self.line if version <= fall.last_good]
        kept = set(self.line)
        self.scores = [score for score in self.scores if score.version in kept]
        self.begin = len(self.scores)


def daily_satisfaction(
    seed: int, days: int, *, mean: float = 0.85, spread: float = 0.1
) -> Sequence[float]:
    """Return the share of satisfied turns of each day. `spread`: standard deviation."""
    chance = random.Random(f"day {seed}")
    return [min(0.98, max(0.02, chance.gauss(mean, spread))) for _ in range(days)]


def turns_until_found(poisoned: int, seed: int) -> int | None:
    """Return after how many scored turns the fall under version number `poisoned` is found; None: not within 16."""
    policy = SimulatedPolicy(lambda steps, _: POISONED if steps >= poisoned else GOOD, seed=seed)
    # Again, if an honest version is rolled back before.
    while len(policy.line) <= poisoned:
        policy.run(1, look_every=1)
    begin = policy.turns
    before = len(policy.rollbacks)
    while policy.turns < begin + BATCH:
        policy.run(1, look_every=1)
        if len(policy.rollbacks) > before:
            return policy.turns - begin
    return None


def false_alarms(seed: int) -> int:
    """Return how many of 100 honest versions, whose satisfaction varies from day to day, are rolled back."""
    days = daily_satisfaction(seed, HONEST_VERSIONS * BATCH // DAY)
    policy = SimulatedPolicy(lambda _, turn: days[turn // DAY], seed=seed)
    policy.run(HONEST_VERSIONS * BATCH, look_every=1)
    return len(policy.rollbacks)


def describe_falls(poisoned: int, runs: int) -> str:
    found = [turns_until_found(poisoned, seed) for seed in range(runs)]
    times = [turns for turns in found if turns is not None]
    return (
        f"version {poisoned} satisfies {POISONED} instead of {GOOD}: found within {BATCH} scored turns in {len(times)} "
        f"of {runs} runs, after {statistics.median(times):g} in the median"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Simulated falls of satisfaction, and false alarms."
    )
    parser.add_argument("--falls", type=int, default=300, help="runs with a poisoned tenth version")
    parser.add_argument(
        "--early", type=int, default=100, help="runs with a poisoned second version"
    )
    parser.add_argument(
        "--honest", type=int, default=20, help=f"runs of {HONEST_VERSIONS} honest versions"
    )
    given = parser.parse_args()
    print(describe_falls(10, given.falls), flush=True)
    print(describe_falls(2, given.early), flush=True)
    alarms = [false_alarms(seed) for seed in range(given.honest)]
    print(
        f"{HONEST_VERSIONS} honest versions, daily standard deviation 0.1: {statistics.mean(alarms):.2f} rolled back "
        f"on average, at most {max(alarms)}, in {given.honest} runs"
    )


if __name__ == "__main__":
    main()
