"""Results of `openclaw-rl env check`: one file of JSON lines per source in the home; the last line of a task counts."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from socket import gethostname

from openclaw_rl.environments.types import EnvironmentTask, TaskFitness


class CheckFile:
    """The checks of one source. They count on the machine on which they were made."""

    def __init__(self, home: Path, source: str) -> None:
        self._path = home / "environments" / "checks" / f"{source}.jsonl"

    def add_check(self, fitness: TaskFitness) -> None:
        """Append a result."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        line = (
            json.dumps({**asdict(fitness), "machine": gethostname(), "at": round(time.time(), 3)})
            + "\n"
        )
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            # One write: two commands at once do not mix their lines.
            file.write(line.encode())

    def read_checks(self) -> dict[str, TaskFitness]:
        """Return the newest result on this machine by the digest of the task."""
        checks: dict[str, TaskFitness] = {}
        if not self._path.exists():
            return checks
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
                on_this_machine = entry.pop("machine") == gethostname()
                entry.pop("at")
                fitness = TaskFitness(**entry)
            except (ValueError, TypeError, KeyError, AttributeError):
                # A line that a full disk cut off.
                continue
            if on_this_machine:
                checks[fitness.digest] = fitness
        return checks


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTasks:
    """Tasks by the result of their check."""

    fit: Sequence[EnvironmentTask]
    unfit: Sequence[TaskFitness]
    unchecked: Sequence[EnvironmentTask]


def sort_by_check(
    tasks: Iterable[EnvironmentTask], checks: Mapping[str, TaskFitness]
) -> CheckedTasks:
    """Sort tasks into those that were found fit, found unfit, and not checked."""
    fit = []
    unfit = []
    unchecked = []
    for task in tasks:
        fitness = checks.get(task.digest)
        if fitness is None:
            unchecked.append(task)
        elif fitness.fit:
            fit.append(task)
        else:
            unfit.append(fitness)
    return CheckedTasks(fit=fit, unfit=unfit, unchecked=unchecked)
