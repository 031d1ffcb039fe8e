"""Progress and summary of a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from openclaw_rl.common.printable import echo
from openclaw_rl.common.terminal import TerminalConsole
from openclaw_rl.environments.run_loop import EpisodeResult

_MAX_TASKS = 20
_MAX_REASONS = 8


@dataclass(slots=True)
class RunSummary:
    """Results so far. `rewards`: of the episodes that are done, by task; `void`: episodes by reason."""

    rewards: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    void: Counter[str] = field(default_factory=Counter)
    earlier: int = 0

    def add_result(self, result: EpisodeResult) -> None:
        self.earlier += result.earlier
        if result.reward is None:
            self.void[result.reason or "no reason"] += 1
        else:
            self.rewards[result.episode.task.id].append(result.reward)

    @property
    def done(self) -> int:
        return sum(map(len, self.rewards.values()))

    @property
    def mean_reward(self) -> float | None:
        """Mean over the episodes that are done."""
        return sum(map(sum, self.rewards.values())) / self.done if self.done else None

    def to_json(self) -> dict[str, Any]:
        tasks = {
            task: {"done": len(rewards), "mean_reward": sum(rewards) / len(rewards)}
            for task, rewards in self.by_task()
        }
        void = {"count": self.void.total(), "reasons": dict(self.void.most_common())}
        return {"done": self.done, "mean_reward": self.mean_reward, "void": void, "tasks": tasks}

    def by_task(self) -> list[tuple[str, list[float]]]:
        return sorted(self.rewards.items())


class RunProgress:
    """Shows a run while it is going on: a bar on a terminal, else a line for each group that has ended."""

    def __init__(self, total: int, group_size: int, console: TerminalConsole) -> None:
        """`total`: number of episodes."""
        self.summary = RunSummary()
        self._group_size = group_size
        self._console = console
        self._groups: dict[str, list[EpisodeResult]] = defaultdict(list)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._bar = Progress(*columns, console=console) if console.is_terminal else None
        self._row = self._bar.add_task("episodes", total=total) if self._bar else None

    def __enter__(self) -> RunProgress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def add_result(self, result: EpisodeResult) -> None:
        """Count a result and show it."""
        self.summary.add_result(result)
        if self._bar and self._row is not None:
            self._bar.update(self._row, advance=1, description=_describe(self.summary))
            return
        group = self._groups[result.episode.group]
        group.append(result)
        if len(group) == self._group_size:
            del self._groups[result.episode.group]
            summary = RunSummary()
            for played in group:
                summary.add_result(played)
            described = _describe(summary)
            if summary.earlier == len(group):
                described += " (before the run was continued)"
            echo(f"{result.episode.task.id}: {described}", err=True)


def print_summary(console: TerminalConsole, summary: RunSummary) -> None:
    """Print what became of the episodes: done, void and why, mean reward, by task."""
    described = _describe(summary)
    if summary.earlier:
        described += f", {summary.earlier} of them earlier"
    console.print(described)
    for reason, count in summary.void.most_common(_MAX_REASONS):
        console.print(f"  void {count}: {reason}", soft_wrap=True)
    table = Table(box=None, padding=(0, 2))
    for column in ("task", "episodes", "mean reward"):
        table.add_column(column)
    for task, rewards in summary.by_task()[:_MAX_TASKS]:
        table.add_row(task, str(len(rewards)), f"{sum(rewards) / len(rewards):.3f}")
    if summary.rewards:
        console.print(table)
    if len(summary.rewards) > _MAX_TASKS:
        console.print(f"  and {len(summary.rewards) - _MAX_TASKS} more tasks; --json lists all")


def _describe(summary: RunSummary) -> str:
    mean = "" if summary.mean_reward is None else f", mean reward {summary.mean_reward:.3f}"
    return f"{summary.done} done, {summary.void.total()} void{mean}"
