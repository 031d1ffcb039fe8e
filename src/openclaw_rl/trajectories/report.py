"""Report of an import: counts, and every refusal with its place and reason."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from rich.console import Group
from rich.table import Table
from rich.text import Text

from openclaw_rl.errors import OpenClawError
from openclaw_rl.trajectories.files import TrajectoryEntry
from openclaw_rl.trajectories.schema import TrajectoryRefused

MAX_EXAMPLES = 3
"""Number of examples shown for each reason; the file has all."""


def trajectories_text(trajectories: int) -> str:
    """Return the count with its noun."""
    return f"{trajectories} trajector{'y' if trajectories == 1 else 'ies'}"


@dataclass(slots=True)
class ImportCounts:
    """Counts of trajectories and turns. `known`: already in the store, with nothing new."""

    read: int = 0
    imported: int = 0
    grown: int = 0
    known: int = 0
    turns: int = 0
    tokenised: int = 0
    scored: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def count_trajectory(self, *, turns: int, of: int, news: bool) -> None:
        """Count one trajectory of `of` turns, `turns` of them new; `news`: a turn has a new reaction or verdict."""
        self.turns += turns
        if turns == of:
            self.imported += 1
        elif turns or news:
            self.grown += 1
        else:
            self.known += 1


class ImportReport:
    """Context manager that writes refusals to a file (mode 600, created by the first one); `file` None: only counts."""

    def __init__(self, file: Path | None = None) -> None:
        self.counts = ImportCounts()
        self.file = file
        self.examples: dict[str, list[str]] = {}
        self._stream: IO[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._stream is not None:
            self._stream.close()

    @property
    def refused_count(self) -> int:
        return self.counts.refused.total()

    def add_refusal(self, entry: TrajectoryEntry, problem: TrajectoryRefused) -> None:
        """Count a refusal, and write it to the file."""
        self.counts.refused[problem.reason] += 1
        where = f"{entry.file}, {entry.place}" if entry.place else str(entry.file)
        examples = self.examples.setdefault(problem.reason, [])
        if len(examples) < MAX_EXAMPLES:
            examples.append(f"{where}: {problem.detail}")
        if self.file is not None:
            line = {"file": str(entry.file), "place": entry.place, "turn": problem.turn}
            self._write_line(
                json.dumps(line | {"reason": problem.reason, "detail": problem.detail})
            )

    def _write_line(self, line: str) -> None:
        assert self.file is not None
        if self._stream is None:
            try:
                self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                opened = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            except OSError as error:
                message = f"{self.file}: refusals cannot be written ({error.strerror}). Name another file with --report"
                raise OpenClawError(message) from None
            self._stream = os.fdopen(opened, "w", encoding="utf-8")
        self._stream.write(line + "\n")

    def render_summary(self, what: str) -> Group:
        """Return a readable summary. `what`: participle of the action, such as "imported"."""
        parts: list[Text | Table] = [Text(self._summary_line(what))]
        if self.refused_count:
            table = Table(
                title=f"\n{self.refused_count} refused",
                title_justify="left",
                box=None,
                padding=(0, 2),
            )
            table.add_column("", justify="right")
            table.add_column("reason", no_wrap=True)
            table.add_column("such as")
            for reason, count in self.counts.refused.most_common():
                table.add_row(str(count), reason, Text("\n".join(self.examples[reason])))
            parts.append(table)
            if self.file is not None:
                parts.append(Text(f"all refusals: {self.file}"))
        return Group(*parts)

    def _summary_line(self, what: str) -> str:
        c = self.counts
        parts = [f"{trajectories_text(c.imported)} {what} ({c.turns} turns)"]
        parts += [f"{c.grown} updated"] * bool(c.grown) + [f"{c.known} imported before"] * bool(
            c.known
        )
        parts += [f"{c.tokenised} turns tokenised from text"] * bool(c.tokenised)
        parts += [f"{c.scored} scored"] * bool(c.scored)
        return ", ".join(parts)
