"""What questions about one policy cost as a home grows: in turns, and in policies.

    python -m benchmarks.growth OUT [--turns 1000 100000] [--policies 1 1000] [--versions-home 1000] [--keep]

Builds the homes that are missing below OUT, asks every question of `growth_rows` in each, and writes OUT/growth.md and
OUT/growth.json. A question about one policy or one session should cost the same in every home. Figures are milliseconds
of processor time, the smallest of five, after one that is not counted, so that the pages of the store are in memory.
Ends with 1 if a bound does not hold.

A home with fewer turns than 50 for each policy has fewer policies. `--versions-home`: policies of one more home, with
about 20 short versions each, in which steps of training are compared with their bound; 0: none.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.growth_home import BATCH, HomeSpec, add_waiting_turns, build_home
from benchmarks.growth_plans import DESIGNED_SCANS, Scan, StatementRecorder, find_scans
from benchmarks.growth_rows import ROWS, Bound, GrowthHome, Row, Stopwatch
from benchmarks.provenance import measured_at
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import Pool

from openclaw_rl.errors import StoreError

HOT_FACTOR = 1.5
REPORT_FACTOR = 5.0
REPORT_MS = 200.0
STEP_MS = 50.0
START_MS = 2000.0
REPEATS = 5
# Seconds of processor time: after these a question is not repeated, and after those it is given up.
_ENOUGH = 4.0
_LIMIT = 60.0
# Steps of SQLite's machine between two looks at the clock.
_CLOCK_STEPS = 200_000
VERSIONS_TURNS = 70
"""Turns of a policy in the home with many versions, which make about 20 versions of two turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The cost of a question in a home."""

    row: str
    ms: float
    is_over_limit: bool
    """It was given up: it costs more."""
    statements: int
    """Different ones that it executed."""
    scans: Sequence[Scan]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredHome:
    """The figures of a home, by row."""

    spec: HomeSpec
    megabytes: float
    build_seconds: float | None
    """None: it was there already."""
    figures: dict[str, Figure]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--turns", type=int, nargs="+", default=[1000, 100_000])
    parser.add_argument("--policies", type=int, nargs="+", default=[1, 1000])
    parser.add_argument("--versions-home", type=int, default=1000)
    parser.add_argument("--keep", action="store_true", help="keep the homes for the next run")
    args = parser.parse_args()
    specs = [
        HomeSpec(turns=turns, policies=policies)
        for policies in args.policies
        for turns in sorted(args.turns)
    ]
    if args.versions_home:
        specs.append(versions_spec(args.versions_home))
    measured = measure_homes(args.out, specs, keep=args.keep)
    over = write_report(args.out, measured)
    print((args.out / "growth.md").read_text(encoding="utf-8"))
    return 1 if over else 0


def versions_spec(policies: int) -> HomeSpec:
    """Return the home in which each policy has about 20 versions."""
    return HomeSpec(turns=VERSIONS_TURNS * policies, policies=policies, batch=2)


def measure_homes(
    out: Path, specs: Sequence[HomeSpec], *, keep: bool, repeats: int = REPEATS
) -> list[MeasuredHome]:
    """Build the homes that are missing below `out`, and measure every row in each. `keep`: do not remove them."""
    measured = []
    for spec in specs:
        folder = out / spec.folder
        build_seconds = None
        if not (folder / "store.db").exists():
            began = time.monotonic()
            build_home(folder, spec)
            build_seconds = time.monotonic() - began
            print(f"{spec.folder}: built in {build_seconds:.0f} s", file=sys.stderr)
        figures = measure_home(folder, spec, repeats)
        size = (folder / "store.db").stat().st_size / 1e6
        measured.append(
            MeasuredHome(spec=spec, megabytes=size, build_seconds=build_seconds, figures=figures)
        )
        if not keep:
            shutil.rmtree(folder)
    return measured


def measure_home(folder: Path, spec: HomeSpec, repeats: int = REPEATS) -> dict[str, Figure]:
    """Return the figure of every row in a home."""
    figures = {}
    with StatementRecorder() as recorder:
        for row in ROWS:
            recorder.statements = {}
            watch = Stopwatch(recorder, _LIMIT)
            with _BoundedStatements(watch.is_late):
                home = GrowthHome(folder, spec)
                try:
                    add_waiting_turns(home.store, spec, home.agent, 2 * BATCH)
                    is_over_limit = _repeat(row, home, watch, repeats)
                    with home.store.read() as conn:
                        scans = find_scans(conn, recorder.statements)
                finally:
                    home.close()
            figures[row.name] = Figure(
                row=row.name,
                ms=1000 * min(watch.seconds),
                is_over_limit=is_over_limit,
                statements=len(recorder.statements),
                scans=scans,
            )
            print(f"{spec.folder}: {row.name}: {figures[row.name].ms:.1f} ms", file=sys.stderr)
    return figures


def _repeat(row: Row, home: GrowthHome, watch: Stopwatch, repeats: int) -> bool:
    """Ask a question until its time is known. Return whether it was given up."""
    try:
        row.measure(home, watch)
        if watch.seconds[0] < _ENOUGH and repeats > 1:
            # The first one has read the pages.
            watch.seconds.clear()
        while len(watch.seconds) < repeats and sum(watch.seconds) < _ENOUGH:
            gc.collect()
            row.measure(home, watch)
    except (StoreError, OperationalError):
        if max(watch.seconds, default=0.0) < watch.limit:
            raise
        return True
    return False


class _BoundedStatements:
    """Interrupts the statements of new connections when `is_late` says so."""

    def __init__(self, is_late: Callable[[], bool]) -> None:
        self._is_late = is_late

    def __enter__(self) -> None:
        event.listen(Pool, "connect", self._prepare)

    def __exit__(self, *_error: object) -> None:
        event.remove(Pool, "connect", self._prepare)

    def _prepare(self, connection: Any, _record: Any) -> None:
        connection.set_progress_handler(self._is_late, _CLOCK_STEPS)


# ------------------------------------------------------------------------------------- the report


def judge_figure(row: Row, figure: Figure, smallest: Figure, spec: HomeSpec) -> str:
    """Return how a figure relates to its bound: "" without one, or how it breaks it."""
    factor = figure.ms / smallest.ms
    problems = []
    if row.bound is Bound.HOT and factor > HOT_FACTOR:
        problems.append(f"over {HOT_FACTOR:g}x")
    if row.bound is Bound.REPORT and factor > REPORT_FACTOR:
        problems.append(f"over {REPORT_FACTOR:g}x")
    if row.bound is Bound.REPORT and figure.ms > REPORT_MS:
        problems.append(f"over {REPORT_MS:g} ms")
    is_many_versions = spec.batch != BATCH
    if row.bound is Bound.STEP and is_many_versions and figure.ms > STEP_MS:
        problems.append(f"over {STEP_MS:g} ms")
    if row.bound is Bound.START and is_many_versions and figure.ms > START_MS:
        problems.append(f"over {START_MS:g} ms")
    return ", ".join(problems)


def write_report(out: Path, measured: Sequence[MeasuredHome]) -> list[str]:
    """Write growth.md and growth.json. Return the bounds that do not hold."""
    over: list[str] = []
    title = f"Cost of questions in milliseconds of processor time ({measured_at()})"
    columns = " | ".join(_describe_home(home) for home in measured)
    lines = [f"# {title}", "", f"| question | {columns} | covers |"]
    lines.append("|---" * (len(measured) + 2) + "|")
    for row in ROWS:
        cells = []
        for home in measured:
            figure = home.figures[row.name]
            smallest = _smallest_home(home, measured).figures[row.name]
            problem = judge_figure(row, figure, smallest, home.spec)
            cells.append(_format_cell(figure, smallest, problem))
            if problem:
                over.append(f"{row.name}, {home.spec.folder}: {problem}")
        lines.append(f"| {row.name} | {' | '.join(cells)} | {row.covers} |")
    lines += ["", *_bound_lines(), "", "## Scans in the plans of questions on a hot path", ""]
    lines += _scan_lines(measured, over) or ["None."]
    lines += ["", "## Bounds that do not hold", "", *([f"- {each}" for each in over] or ["None."])]
    out.mkdir(parents=True, exist_ok=True)
    (out / "growth.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = {
        "measured": measured_at(),
        "homes": [_home_data(home) for home in measured],
        "over": over,
    }
    (out / "growth.json").write_text(json.dumps(data, indent=1), encoding="utf-8")
    return over


def _smallest_home(home: MeasuredHome, measured: Sequence[MeasuredHome]) -> MeasuredHome:
    """Return the smallest home with as many policies, with which this one is compared."""
    alike = [other for other in measured if other.spec.policies == home.spec.policies]
    return min(alike, key=lambda other: other.spec.turns)


def _describe_home(home: MeasuredHome) -> str:
    spec = home.spec
    count = len(spec.agents)
    policies = "1 policy" if count == 1 else f"{count:,} policies"
    batch = "" if spec.batch == BATCH else f", {spec.batch} turns a version"
    return f"{spec.turns:,} turns, {policies}{batch} ({home.megabytes:.0f} MB)"


def _format_cell(figure: Figure, smallest: Figure, problem: str) -> str:
    cell = f"{figure.ms:,.0f}" if figure.ms >= 10 else f"{figure.ms:.2g}"
    if figure.is_over_limit:
        cell = f"over {cell}"
    notes = []
    if figure is not smallest:
        notes.append(f"{figure.ms / smallest.ms:.1f}x")
    if problem:
        notes.append(f"**{problem}**")
    return f"{cell} ({', '.join(notes)})" if notes else cell


def _bound_lines() -> list[str]:
    rows = {bound: [row.name for row in ROWS if row.bound is bound] for bound in Bound}
    return [
        f"Bounds, compared with the smallest home: at most {HOT_FACTOR:g} times: {'; '.join(rows[Bound.HOT])}.",
        f"At most {REPORT_FACTOR:g} times and {REPORT_MS:g} ms: {'; '.join(rows[Bound.REPORT])}.",
        f"In the home with many versions: a step {STEP_MS:g} ms, the first iteration {START_MS:g} ms.",
        "Others have no bound.",
    ]


def _scan_lines(measured: Sequence[MeasuredHome], over: list[str]) -> list[str]:
    """Return a line for each scan on a hot path, with its questions and the rows of its table in the largest home."""
    largest: dict[tuple[str, str | None, str], Scan] = {}
    questions: dict[tuple[str, str | None, str], dict[str, None]] = {}
    for row in ROWS:
        if row.bound is Bound.REPORT:
            continue
        for home in measured:
            for scan in home.figures[row.name].scans:
                key = (scan.table, scan.index, scan.statement)
                questions.setdefault(key, {})[row.name] = None
                if key not in largest or largest[key].rows < scan.rows:
                    largest[key] = scan
    lines = []
    for key, scan in sorted(largest.items(), key=lambda item: item[1].is_bounded):
        how = "" if scan.index is None else f" by `{scan.index}`"
        size = f"{scan.rows:,} rows"
        if scan.is_partial:
            size = "a part of the rows"
        elif scan.is_bounded:
            size = f"{DESIGNED_SCANS.get(scan.table, 'constant')}: {size}"
        names = "; ".join(questions[key])
        lines.append(f"- `{scan.table}`{how}, {size}, by: {names}. `{scan.statement[:400]}`")
        if not scan.is_bounded:
            over.append(f"scan of {scan.table}{how} by: {names}")
    return lines


def _home_data(home: MeasuredHome) -> dict[str, Any]:
    return {
        "spec": asdict(home.spec) | {"policies_built": len(home.spec.agents)},
        "megabytes": home.megabytes,
        "build_seconds": home.build_seconds,
        "figures": {name: asdict(figure) for name, figure in home.figures.items()},
    }


if __name__ == "__main__":
    raise SystemExit(main())
