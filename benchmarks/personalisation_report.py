"""Report of `make learn-protocol`: a table with intervals, and a picture."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.demo.protocol import (
    IN_A_ROW,
    MAX_SESSIONS,
    sessions_until_satisfied,
)
from benchmarks.faults.report import replace_tables

from openclaw_rl.common.statistics.mean_intervals import bootstrap_interval
from openclaw_rl.evals.tables import markdown_table

SECTION = "personalisation"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstReplies:
    """Shares of the held-out questions whose first reply satisfied the person, and was correct."""

    satisfied: float
    correct: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolRun:
    """One arm, person and seed. `satisfied`: for each session whether its first reply satisfied.

    `after` and `versions`: the measures and the number of versions after the least number of sessions.
    """

    name: str
    arm: str
    person: str
    seed: int
    satisfied: tuple[bool, ...]
    reactions: int
    before: FirstReplies
    after: FirstReplies
    versions: int
    seconds: float

    @staticmethod
    def from_json(line: str) -> ProtocolRun:
        values: dict[str, Any] = json.loads(line)
        first = {key: FirstReplies(**values[key]) for key in ("before", "after")}
        return ProtocolRun(**values | first | {"satisfied": tuple(values["satisfied"])})

    @property
    def reached(self) -> int | None:
        """Sessions until three first replies in a row satisfied; None if that never was."""
        return sessions_until_satisfied(self.satisfied)


def run_line(run: ProtocolRun) -> str:
    return (
        f"{run.name}: {run.reached or f'> {len(run.satisfied)}'} sessions; satisfied {run.before.satisfied:.2f} -> "
        f"{run.after.satisfied:.2f}, correct {run.before.correct:.2f} -> {run.after.correct:.2f}; {run.reactions} "
        f"reactions, {run.versions} versions, {run.seconds:.0f} s"
    )


def _sessions(run: ProtocolRun) -> float:
    return float(run.reached or MAX_SESSIONS)


_MEASURES: Sequence[tuple[str, str, Callable[[ProtocolRun], float]]] = (
    ("sessions", "{:.1f}", _sessions),
    ("satisfied before", "{:.2f}", lambda run: run.before.satisfied),
    ("satisfied after", "{:.2f}", lambda run: run.after.satisfied),
    ("correct before", "{:.2f}", lambda run: run.before.correct),
    ("correct after", "{:.2f}", lambda run: run.after.correct),
)


def _by_arm(runs: Sequence[ProtocolRun]) -> dict[str, list[ProtocolRun]]:
    return {
        arm: [run for run in runs if run.arm == arm]
        for arm in dict.fromkeys(run.arm for run in runs)
    }


def _with_interval(form: str, values: Sequence[float]) -> str:
    low, high = bootstrap_interval(values)
    return f"{form.format(statistics.fmean(values))} ({form.format(low)} to {form.format(high)})"


def result_table(runs: Sequence[ProtocolRun]) -> str:
    """Return a row for each arm over all people, then one for each arm and person; with intervals over the runs."""
    head = ("arm", "person", "runs", *(name for name, _, _ in _MEASURES), "never three in a row")
    rows = []
    people = list(dict.fromkeys(run.person for run in runs))
    for arm, of_arm in _by_arm(runs).items():
        groups = [
            ("all", of_arm),
            *((p, [run for run in of_arm if run.person == p]) for p in people),
        ]
        for person, group in groups if len(people) > 1 else groups[:1]:
            cells = [
                _with_interval(form, [value(run) for run in group]) for _, form, value in _MEASURES
            ]
            rows.append(
                (arm, person, len(group), *cells, sum(run.reached is None for run in group))
            )
    return markdown_table(head, rows)


def difference_table(runs: Sequence[ProtocolRun], against: str = "memory") -> str:
    """Return for each other arm the mean difference from the arm `against`, paired by person and seed."""
    arms = _by_arm(runs)
    base = {(run.person, run.seed): run for run in arms.get(against, [])}
    rows = []
    for arm, group in arms.items():
        pairs = [(run, base[key]) for run in group if (key := (run.person, run.seed)) in base]
        if pairs and arm != against:
            sessions = [_sessions(run) - _sessions(other) for run, other in pairs]
            satisfied = [run.after.satisfied - other.after.satisfied for run, other in pairs]
            rows.append(
                (
                    arm,
                    len(pairs),
                    _with_interval("{:+.1f}", sessions),
                    _with_interval("{:+.2f}", satisfied),
                )
            )
    return markdown_table((f"arm less {against}", "pairs", "sessions", "satisfied after"), rows)


def plot_arms(path: Path, runs: Sequence[ProtocolRun]) -> None:
    """Write a PNG: sessions until three in a row, and held-out satisfaction before and after; intervals over runs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    arms = _by_arm(runs)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for place, group in enumerate(arms.values()):
        values = [_sessions(run) for run in group]
        _draw_bar(left, place, values, "#2e4057")
        left.plot([place] * len(values), values, ".", color="#9aa5b1", zorder=3)
        _draw_bar(right, place - 0.19, [run.before.satisfied for run in group], "#c8d0d9", 0.36)
        _draw_bar(right, place + 0.19, [run.after.satisfied for run in group], "#d1495b", 0.36)
    left.set(title=f"sessions until {IN_A_ROW} first replies in a row satisfied", ylim=(0, None))
    right.set(title="held-out first replies that satisfy, before and after", ylim=(0, 1.05))
    for axis in (left, right):
        axis.set_xticks(range(len(arms)), list(arms))
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_bar(
    axis: Any, place: float, values: Sequence[float], colour: str, width: float = 0.6
) -> None:
    mean = statistics.fmean(values)
    (low, high) = bootstrap_interval(values)
    axis.bar(place, mean, width, color=colour, yerr=[[mean - low], [high - mean]], capsize=3)


def write_document(page: Path, runs: Sequence[ProtocolRun], given: argparse.Namespace) -> None:
    """Replace the result on the page, and its picture in `images/` beside it."""
    picture = page.parent / "images" / f"{page.stem}.png"
    plot_arms(picture, runs)
    people, seeds = (len({getattr(run, key) for run in runs}) for key in ("person", "seed"))
    person = f"the model {given.person_model}" if given.person_url else "rules"
    facts = (
        f"{len(runs)} runs: each arm with {people} people and {seeds} seeds, simulated by {person}; at least "
        f"{given.sessions} sessions of at most {given.max_replies} replies, {given.questions} held-out questions; "
        f"{sum(run.seconds for run in runs) / 60:.0f} minutes of computation."
    )
    image = f"![sessions and satisfaction by arm](images/{picture.name})"
    tables = f"{result_table(runs)}\n\n{difference_table(runs)}"
    replace_tables(page, SECTION, f"{facts}\n\n{tables}\n\n{image}")
