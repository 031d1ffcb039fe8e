"""`make faults`: causes faults in running systems under load, and checks that nothing acknowledged is lost.

    python -m benchmarks.faults [--kills 6] [--each 1] [--seconds 5] [--plans processes,environments,wire,trust]

Exits with 1 if an invariant was violated. A run is repeated with the seed that it prints.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.faults import soak, trust, wire
from benchmarks.faults.plans import (
    PLANS,
    SETTINGS,
    FaultOptions,
    PlanFolders,
    clock_environment,
    make_plans,
)
from benchmarks.faults.report import RunReport, replace_tables
from benchmarks.faults.runner import FaultPlan, FaultResult, run_plan
from benchmarks.faults.small_disk import mounted_disks
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from openclaw_rl.supervisor.subprocess_system import scratch_config

ALL_PLANS = (*PLANS, "wire", "trust")
_REPORT = "report.md"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--kills",
        type=int,
        default=6,
        help="kill -9 over all processes; also during practice, and during episodes",
    )
    parser.add_argument("--each", type=int, default=1, help="times of each other fault")
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="how long a lasting cause lasts [5]"
    )
    parser.add_argument(
        "--recovery",
        type=float,
        default=10.0,
        help="seconds after which all workers must run again [10]",
    )
    parser.add_argument(
        "--hours",
        type=float,
        default=0.0,
        help="repeat all plans for so long, each with another seed",
    )
    parser.add_argument(
        "--soak", type=float, default=0.0, metavar="MINUTES", help="a run without faults instead"
    )
    parser.add_argument(
        "--plans",
        default=",".join(ALL_PLANS),
        help=f"of {','.join(ALL_PLANS)}, separated by commas",
    )
    parser.add_argument("--only", default="", help="faults whose name contains this")
    parser.add_argument("--seed", type=int, help="default: random")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/faults"), help="folder for logs and tables"
    )
    parser.add_argument("--docs", type=Path, help="page whose tables a whole run replaces")
    parser.add_argument(
        "--merge",
        type=Path,
        nargs="+",
        metavar="OUT",
        help="write the tables of these finished runs to --docs instead",
    )
    return parser.parse_args()


def describe_command(given: argparse.Namespace) -> str:
    """Return the command that repeats the run, without the folders of this machine."""
    kept = {
        name: value for name, value in vars(given).items() if name not in ("out", "docs") and value
    }
    return shlex.join(
        [
            "python",
            "-m",
            "benchmarks.faults",
            *(f"--{name}={value}" for name, value in kept.items()),
        ]
    )


def documented_section(given: argparse.Namespace) -> str | None:
    """Return the section of the page that this run replaces; None if it runs only some of the faults."""
    if given.soak:
        return "soak"
    return "faults" if given.plans == ",".join(ALL_PLANS) and not given.only else None


class ProgressView:
    """Progress bar, and a line for each fault that violated something."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def start_plan(self, name: str, total: int) -> None:
        self._progress.reset(self._task, description=name, total=total)

    def show_fault(self, name: str, result: FaultResult | None) -> None:
        self._progress.update(self._task, description=name)
        if result is not None:
            self.finish_one(name, result.violations)

    def show_sample(self, sample: soak.SoakSample) -> None:
        """Show how far a soak is: on a terminal always, else every minute."""
        memory = ", ".join(f"{name} {size:.0f}" for name, size in sample.memory.items())
        self._progress.update(
            self._task, advance=1, description=f"{sample.replies} replies, version {sample.head}"
        )
        if not self._console.is_terminal and sample.at % 60 < soak.SAMPLE_SECONDS:
            text = f"  {sample.at / 60:.0f} min: {sample.replies} replies, version {sample.head}; MB: {memory}"
            self._console.print(text, markup=False, soft_wrap=True)

    def finish_one(self, name: str, violations: tuple[str, ...] | list[str]) -> None:
        self._progress.advance(self._task)
        for line in violations[:3]:
            self._console.print(f"  {name}: {line}", style="red", markup=False)
        if not self._console.is_terminal:
            self._console.print(f"  {name}: {len(violations)} violations", markup=False)


@contextlib.contextmanager
def temporary_environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables while the block runs, for the processes that it starts."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@dataclass(slots=True)
class FaultRun:
    """One call of the program."""

    given: argparse.Namespace
    report: RunReport
    view: ProgressView

    def run_rounds(self, seed: int, console: Console) -> None:
        """Run the chosen plans, again and again if `--hours` says so."""
        end = time.monotonic() + self.given.hours * 3600
        while True:
            console.print(f"  seed {seed}")
            self._run_round(seed)
            if time.monotonic() >= end:
                return
            seed += 1

    def _run_round(self, seed: int) -> None:
        given = self.given
        chosen = given.plans.split(",")
        options = FaultOptions(kills=given.kills, each=given.each, seconds=given.seconds, seed=seed)
        with tempfile.TemporaryDirectory(prefix="faults-") as work:
            home = Path(work) / "disk" / "home"
            with mounted_disks(home, home / "policies") as disks:
                folders = PlanFolders(work=Path(work), disks=disks)
                for plan in make_plans(
                    [name for name in PLANS if name in chosen], options, folders
                ):
                    self._run_plan(plan, seed)
                self.report.skipped = folders.skipped
        if "wire" in chosen:
            self._run_attacks()
        if "trust" in chosen:
            self._attack_trust()

    def _run_plan(self, plan: FaultPlan, seed: int) -> None:
        faults = [fault for fault in plan.faults if self.given.only in fault.name]
        if not faults:
            return
        self.view.start_plan(plan.name, len(faults))
        chosen = replace(plan, faults=faults)
        out = self.given.out / str(seed) / plan.name
        with temporary_environment(clock_environment(plan)):
            found = asyncio.run(
                run_plan(chosen, seed, self.given.recovery, out, self.view.show_fault)
            )
        self.report.add_plan(plan.name, found)

    def _run_attacks(self) -> None:
        names = [name for name in wire.ATTACKS * self.given.each if self.given.only in name]
        self.view.start_plan("wire", len(names))
        seen = lambda attack: self.view.finish_one(attack.name, wire.find_violations(attack))  # noqa: E731
        self.report.attacks += wire.run_attacks(names, seen)

    def _attack_trust(self) -> None:
        names = [name for name in trust.ATTACKS if self.given.only in name]
        self.view.start_plan("trust", len(names))
        seen = lambda attack: self.view.finish_one(attack.name, attack.violations)  # noqa: E731
        with tempfile.TemporaryDirectory(prefix="trust-") as work:
            self.report.trust += trust.run_attacks(Path(work), names, seen)

    def run_soak(self) -> None:
        """Run a system without faults."""
        self.view.start_plan("soak", int(self.given.soak * 60 / soak.SAMPLE_SECONDS))
        with tempfile.TemporaryDirectory(prefix="soak-") as work:
            config = scratch_config(Path(work) / "home", SETTINGS | soak.SETTINGS)
            asyncio.run(
                soak.run_soak(config, self.given.soak, self.given.out / "soak", self._show_sample)
            )

    def _show_sample(self, sample: soak.SoakSample) -> None:
        self.report.samples.append(sample)
        self.view.show_sample(sample)


def merge_reports(outs: Sequence[Path], docs: Path | None) -> None:
    """Write the tables of finished runs to the page, one below the other."""
    files = [out / _REPORT for out in outs]
    if docs is None or (missing := [str(file) for file in files if not file.is_file()]):
        sys.exit(
            "--merge: expected --docs PAGE"
            if docs is None
            else f"--merge: no run wrote {', '.join(missing)}"
        )
    replace_tables(
        docs, "faults", "\n\n".join(file.read_text(encoding="utf-8").strip() for file in files)
    )


def main() -> None:
    given = parse_arguments()
    console = Console()
    began = time.monotonic()
    if given.merge:
        return merge_reports(given.merge, given.docs)
    # Filesystems are unmounted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unknown = set(given.plans.split(",")) - set(ALL_PLANS)
    if unknown:
        sys.exit(
            f"--plans: expected some of {', '.join(ALL_PLANS)}, got {', '.join(sorted(unknown))}."
        )
    if given.seed is None:
        given.seed = random.SystemRandom().randrange(10_000)
    given.out.mkdir(parents=True, exist_ok=True)
    report = RunReport(command=describe_command(given))
    columns = (
        TextColumn("  {task.description:<40}"),
        BarColumn(30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    try:
        with Progress(*columns, console=console) as progress:
            run = FaultRun(given, report, ProgressView(console, progress))
            if given.soak:
                run.run_soak()
            else:
                run.run_rounds(given.seed, console)
    finally:
        tables = report.write_markdown()
        (given.out / _REPORT).write_text(tables + "\n", encoding="utf-8")
        console.print(tables, markup=False, soft_wrap=True)
    if given.docs is not None and (section := documented_section(given)):
        replace_tables(given.docs, section, tables)
    console.print(f"  {time.monotonic() - began:.0f} s; logs in {given.out}")
    sys.exit(1 if report.has_failed else 0)


if __name__ == "__main__":
    main()
