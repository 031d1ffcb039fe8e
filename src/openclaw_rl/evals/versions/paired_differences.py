"""Differences between two versions on the same tasks and seeds."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass

from openclaw_rl.common.statistics.mean_intervals import difference_interval
from openclaw_rl.evals.task_scores import EvalResult, TaskScore


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """Difference of the share of solved tasks, `new` less `old`, with its 95% interval.

    `tasks`: tasks with a score of both versions. The shares are means over the seeds of a task, then over tasks:
    samples of one task are not independent of each other.
    """

    kind: str
    tasks: int
    new: float
    old: float
    low: float
    high: float

    @property
    def mean(self) -> float:
        return self.new - self.old

    @property
    def verdict(self) -> str:
        """Whether the interval excludes no difference."""
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "not decided"


def paired_scores(
    new: EvalResult, old: EvalResult, kind: str
) -> dict[str, list[tuple[TaskScore, TaskScore]]]:
    """Return for each task of a kind the scores of both versions, a pair for each seed."""
    pairs: defaultdict[str, list[tuple[TaskScore, TaskScore]]] = defaultdict(list)
    for first, second in zip(new.of_kind(kind), old.of_kind(kind), strict=True):
        assert (first.name, first.seed) == (second.name, second.seed), (
            "both versions have the same tasks"
        )
        pairs[first.name].append((first, second))
    return pairs


def paired_difference(new: EvalResult, old: EvalResult, kind: str) -> PairedDifference | None:
    """Return the difference on the tasks of a kind; None if no task has a score of both versions."""
    means = []
    for pairs in paired_scores(new, old, kind).values():
        solved = [
            (a.solved, b.solved) for a, b in pairs if a.solved is not None and b.solved is not None
        ]
        if solved:
            means.append(
                (statistics.fmean(a for a, _ in solved), statistics.fmean(b for _, b in solved))
            )
    if not means:
        return None
    low, high = difference_interval([a - b for a, b in means])
    first, second = (statistics.fmean(values) for values in zip(*means, strict=True))
    return PairedDifference(kind=kind, tasks=len(means), new=first, old=second, low=low, high=high)
