"""How often a judge that is right on a share of the turns loses its trust within 40 explicit scores.

    python benchmarks/judge_trust.py

Simulated judges and people: each pair of scores is drawn on its own, and the rule of the store decides after each one.
"""

from __future__ import annotations

import random

from openclaw_rl.evals.tables import markdown_table
from openclaw_rl.settings.load import Config
from openclaw_rl.store.lineage.version_stats import is_below_kappa

RUNS = 1000
SCORES = 40


def decisions(right: float, good: float, seed: int) -> list[bool]:
    """Return after each score whether the judge is not trusted. `right`, `good`: shares of the turns."""
    chance = random.Random(seed)
    pairs = []
    out = []
    for _ in range(SCORES):
        user = 1 if chance.random() < good else -1
        pairs.append((user if chance.random() < right else -user, user))
        out.append(is_below_kappa(pairs, Config().judge.min_kappa))
    return out


def table_row(right: float) -> tuple[str, ...]:
    """Return the shares of runs in which the judge was not trusted at some time, and at the end."""
    cells = [f"{right:.0%}"]
    for good in (0.5, 0.8):
        runs = [decisions(right, good, seed) for seed in range(RUNS)]
        cells += [f"{sum(map(any, runs)) / RUNS:.1%}", f"{sum(run[-1] for run in runs) / RUNS:.1%}"]
    return tuple(cells)


if __name__ == "__main__":
    header = ("verdicts that are right", "half good: ever", "at 40", "80% good: ever", "at 40")
    print(markdown_table(header, [table_row(right) for right in (0.5, 0.6, 0.7, 0.8, 0.85, 0.9)]))
