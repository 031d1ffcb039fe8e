"""Time and memory of environments: `python -m benchmarks.environments [--parts trials browsers growth]`.

- trials: 32 trials at once of task folders in Harbor's format, 8 commands each, in boxes, verified in fresh boxes.
- browsers: 8 episodes at once with web tasks in a real browser; `--python` names a Python with browsergym-miniwob.
- growth: 1,000 episodes of each of three sources (such trials, tools in boxes, web tasks) by one runner at one gateway:
  the size of everything after 250 episodes and after 1,000.

All by `openclaw-rl env run`. The engine is a stub that gives one prepared reply at once. Writes
benchmarks/results/environments.md; ends with 1 if a bound does not hold. What is missing on the machine (bubblewrap, a
browser) is not measured, and named.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.episode_load import ROLES, PlayedRun, RunSample, episode_load
from benchmarks.provenance import measured_at
from benchmarks.servers import ROOT
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox.bubblewrap_args import find_bubblewrap

RESULTS = Path(__file__).parent / "results" / "environments.md"
PARTS = ("trials", "browsers", "growth")
SOURCES = ("trials", "tools", "browser")
# Episodes of a task.
GROUP = 8
TRIALS = 32
COMMANDS = 8
TRIAL_SECONDS = 20.0
TRIAL_MB = 1000.0
BROWSERS = 8
ACTIONS = 4
RESET_SECONDS = 2.0
BROWSER_MB = 1200.0
# Of the episodes, after which growth begins to count.
FIRST_SHARE = 0.25
# Of the episodes, over whose samples the median is taken: what runs at one moment differs.
WINDOW = 0.1
# Further episodes.
AFTER = 16
GROWTH_MB = {"runner": 16.0, "programs": 32.0, "browser": 64.0, "gateway": 16.0}
# Of descriptors, processes and files each.
GROWTH_COUNT = 8
WEB_TASKS = ROOT / "tasks" / "web"
PYTHON = ROOT / ".browsergym-venv" / "bin" / "python"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")

COMMAND = "grep -c ERROR app.log; sort -u app.log | wc -l; echo done >>steps.txt; wc -l <steps.txt"
ACTION = "scroll(0, 200)"
SETTINGS = """version = "1.0"

[verifier]
timeout_sec = 60.0

[agent]
timeout_sec = 300.0

[environment]
build_timeout_sec = 60.0
memory_mb = 256
storage_mb = 64
allow_internet = false
"""
TEST = """#!/bin/sh
# Every command wrote a line.
mkdir -p /logs/verifier
echo 0 >/logs/verifier/reward.txt
[ "$(wc -l </app/steps.txt)" -eq "$(cat /tests/commands.txt)" ] && echo 1 >/logs/verifier/reward.txt
exit 0
"""


PYTHON_TOOL = "total = 0\ndef add(number):\n    global total\n    total += number\n    return {'total': total}\n"
PARAMETERS = {
    "type": "object",
    "properties": {"number": {"type": "integer"}},
    "required": ["number"],
}
CALL = {"tool": "add", "arguments": {"number": 7}}


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundCheck:
    """A figure and what it may be at most."""

    name: str
    value: float
    bound: float
    unit: str = ""

    @property
    def holds(self) -> bool:
        return self.value <= self.bound

    def as_row(self) -> str:
        cells = (self.name, f"{self.value:.4g}{self.unit}", f"{self.bound:g}{self.unit}")
        return f"| {' | '.join(cells)} | {'holds' if self.holds else '**DOES NOT HOLD**'} |"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPart:
    """What a part found. `lines`: the figures in Markdown."""

    lines: Sequence[str]
    checks: Sequence[BoundCheck]


@contextmanager
def shown_progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr while the block runs. Yields a function that takes the number that is done."""
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=total)
        yield lambda done: progress.update(task, completed=done)


def write_tasks(folder: Path, count: int, commands: int) -> Path:
    """Write task folders in Harbor's format, each solved by `commands` times `COMMAND`. Return the folder."""
    log = "".join(
        f"{n:05} {'ERROR' if n % 7 == 0 else 'INFO'} request {n % 50}\n" for n in range(2000)
    )
    for number in range(count):
        texts = {
            "task.toml": SETTINGS,
            "instruction.md": f"Report the errors of app.log, number {number}.\n",
            "environment/Dockerfile": "FROM debian:12-slim\nWORKDIR /app\nCOPY files/ /app/\n",
            "environment/files/app.log": log,
            "tests/test.sh": TEST,
            "tests/commands.txt": f"{commands}\n",
        }
        for name, text in texts.items():
            file = folder / f"task-{number}" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    return folder


def write_tools(folder: Path, count: int) -> Path:
    """Write a tool that runs in a box of each episode, and tasks for it. Return the configuration."""
    tool = {
        "name": "add",
        "description": "Add to the total.",
        "parameters": PARAMETERS,
        "python": PYTHON_TOOL,
    }
    checks = {"kind": "calls", "value": [CALL], "extra": True}
    folder.mkdir()
    (folder / "tools.json").write_text(json.dumps({"tools": [tool], "tasks": "tasks.jsonl"}))
    tasks = [
        {"prompt": f"Add some numbers, task {number}.", "check": checks} for number in range(count)
    ]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return folder / "tools.json"


def check_run(run: PlayedRun, reward: float | None = None) -> list[BoundCheck]:
    """Return the checks that nothing is left of a run, and that each episode got the reward."""
    words = (
        f"leftovers of the run: {'; '.join(run.left[:3])}" if run.left else "leftovers of the run"
    )
    checks = [BoundCheck(name=words, value=len(run.left), bound=0)]
    if reward is not None:
        missing = reward - run.summary["mean_reward"]
        checks.append(
            BoundCheck(name="share of episodes without all their commands", value=missing, bound=0)
        )
    return checks


def peak_mb(samples: Sequence[RunSample], *roles: str) -> float:
    return max(sample.memory_of(*roles) for sample in samples)


def measure_trials(options: argparse.Namespace) -> MeasuredPart:
    """Play all trials at once."""
    with tempfile.TemporaryDirectory(prefix="trials-") as name, episode_load(COMMAND) as load:
        tasks = write_tasks(Path(name), TRIALS // GROUP, COMMANDS)
        source = (
            f"harbor:{tasks}",
            "--agent",
            "text",
            "--group",
            str(GROUP),
            "--parallel",
            str(TRIALS),
        )
        with shown_progress("trials", TRIALS) as seen:
            run = load.play_run(
                (*source, "--max-steps", str(COMMANDS)), limit=600, interval=0.2, seen=seen
            )
    memory = peak_mb(run.samples, "runner", "programs")
    lines = [
        f"{TRIALS} trials at once, {COMMANDS} commands each, took {run.seconds:.1f} s: the whole command, with its "
        f"start, boxes and verification in fresh boxes. Gateway and stub used {run.server_seconds:.1f} s of processor "
        f"time in it. At its peak the runner took {peak_mb(run.samples, 'runner'):.0f} MB, all boxes together "
        f"{peak_mb(run.samples, 'programs'):.0f} MB, and the gateway {peak_mb(run.samples, 'gateway'):.0f} MB. "
        f"At most {max(sample.processes for sample in run.samples)} processes."
    ]
    checks = [
        BoundCheck(
            name=f"{TRIALS} trials of {COMMANDS} commands",
            value=run.seconds,
            bound=TRIAL_SECONDS,
            unit=" s",
        ),
        BoundCheck(name="runner and boxes", value=memory, bound=TRIAL_MB, unit=" MB"),
    ]
    return MeasuredPart(lines=lines, checks=[*checks, *check_run(run, 1.0)])


def play_web_tasks(options: argparse.Namespace, name: str, group: int, *words: str) -> PlayedRun:
    """Play the shipped web tasks in a browser, each `group` times."""
    episodes = len(list(WEB_TASKS.glob("*/task.json"))) * group
    with episode_load(ACTION) as load, shown_progress(name, episodes) as seen:
        source = (f"browsergym:{WEB_TASKS}", "--python", str(options.python), "--group", str(group))
        return load.play_run(
            (*source, *words, "--limit-seconds", "600"), limit=1800, interval=0.25, seen=seen
        )


def measure_browsers(options: argparse.Namespace) -> MeasuredPart:
    """Play web tasks one after the other, and then side by side. What waits for the browser's start is left out."""
    alone = play_web_tasks(options, "browser alone", 2, "--parallel", "1", "--max-steps", "1")
    run = play_web_tasks(
        options, "browsers", 4, "--parallel", str(BROWSERS), "--max-steps", str(ACTIONS)
    )
    resets = alone.resets[1:]
    beside = run.resets[BROWSERS:]
    memory = peak_mb(run.samples, "browser", "programs")
    lines = [
        f"{BROWSERS} browsers side by side, {len(run.resets)} episodes of {ACTIONS} actions with the shipped web "
        f"tasks, took {run.seconds:.1f} s. At its peak Chromium took {peak_mb(run.samples, 'browser'):.0f} MB, the "
        f"program that drives it {peak_mb(run.samples, 'programs'):.0f} MB, and the runner "
        f"{peak_mb(run.samples, 'runner'):.0f} MB.",
        "",
        "A reset, from the opening of an episode to the first request with its page:",
        "",
        "| | resets | median s | slowest s |",
        "|---|---|---|---|",
        *(
            f"| {name} | {len(found)} | {statistics.median(found):.2f} | {max(found):.2f} |"
            for name, found in (
                ("one after the other", resets),
                (f"{BROWSERS} side by side, all of them busy", beside),
                ("the first ones, which wait for the start of the browser", run.resets[:BROWSERS]),
            )
        ),
    ]
    checks = [
        BoundCheck(
            name=f"{BROWSERS} browsers with their program",
            value=memory,
            bound=BROWSER_MB,
            unit=" MB",
        ),
        BoundCheck(name="slowest reset", value=max(resets), bound=RESET_SECONDS, unit=" s"),
    ]
    return MeasuredPart(lines=lines, checks=[*checks, *check_run(alone), *check_run(run)])


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthSource:
    """A source whose growth is measured. `words`: arguments of `env run`. `tasks`: how many it has."""

    name: str
    reply: str
    words: Sequence[str]
    tasks: int


def growth_sources(folder: Path, options: argparse.Namespace) -> list[GrowthSource]:
    """Return the sources that can be played on this machine. `folder`: a new one for their tasks."""
    usual = ("--parallel", "8", "--limit-seconds", "600")
    trials = (
        f"harbor:{write_tasks(folder / 'trials', 5, 2)}",
        "--agent",
        "text",
        "--max-steps",
        "2",
        *usual,
    )
    tools = (
        f"tools:{write_tools(folder / 'tools', 5)}",
        "--agent",
        "text",
        "--max-steps",
        "2",
        *usual,
    )
    web = (f"browsergym:{WEB_TASKS}", "--python", str(options.python), "--max-steps", "1", *usual)
    found = [
        GrowthSource(name="trials", reply=COMMAND, words=trials, tasks=5),
        GrowthSource(name="tools", reply=json.dumps(CALL), words=tools, tasks=5),
    ]
    if why_no_browser(options) is None:
        found.append(GrowthSource(name="browser", reply=ACTION, words=web, tasks=8))
    return [source for source in found if source.name in options.sources]


def measure_growth(options: argparse.Namespace) -> MeasuredPart:
    """Play many episodes of each source, each by one runner at one gateway."""
    columns = [
        "source",
        "after",
        *(f"{role} MB" for role in ROLES),
        "descriptors",
        "processes",
        "files",
    ]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    checks = list[BoundCheck]()
    with tempfile.TemporaryDirectory(prefix="growth-") as name:
        for source in growth_sources(Path(name), options):
            epoch = source.tasks * GROUP
            # At the end of a run fewer are played at once.
            epochs = math.ceil((options.episodes + AFTER) / epoch)
            with (
                episode_load(source.reply) as load,
                shown_progress(f"growth: {source.name}", epochs * epoch) as seen,
            ):
                more = ("--group", str(GROUP), "--epochs", str(epochs))
                run = load.play_run((*source.words, *more), limit=3600, interval=0.25, seen=seen)
            ends = (FIRST_SHARE * options.episodes, options.episodes)
            early, late = (size_at(run.samples, end, WINDOW * options.episodes) for end in ends)
            lines += [size_row(source.name, size) for size in (early, late)]
            checks += [*compare_sizes(source.name, early, late), *check_run(run)]
    lines += [
        "",
        "Descriptors: of runner and gateway. Files: in the home and in the folder for temporary files. Each is the "
        f"median over {WINDOW:.0%} of the episodes.",
    ]
    return MeasuredPart(lines=lines, checks=checks)


def size_row(source: str, size: RunSample) -> str:
    cells = [source, str(size.episodes), *(f"{size.memory[role]:.1f}" for role in ROLES)]
    cells += [
        f"{size.descriptors['runner']:g}, {size.descriptors['gateway']:g}",
        f"{size.processes:g}",
    ]
    cells.append(f"{size.files['home']:g}, {size.files['scratch']:g}")
    return f"| {' | '.join(cells)} |"


def compare_sizes(source: str, early: RunSample, late: RunSample) -> list[BoundCheck]:
    """Return the bounds of growth."""
    grown = {
        f"{role} MB": (late.memory[role] - early.memory[role], bound)
        for role, bound in GROWTH_MB.items()
    }
    for role in late.descriptors:
        grown[f"descriptors of the {role}"] = (
            late.descriptors[role] - early.descriptors[role],
            GROWTH_COUNT,
        )
    for place in late.files:
        grown[f"files in the {place} folder"] = late.files[place] - early.files[place], GROWTH_COUNT
    grown["processes"] = late.processes - early.processes, GROWTH_COUNT
    return [
        BoundCheck(name=f"{source}: more {what}", value=value, bound=bound)
        for what, (value, bound) in grown.items()
    ]


def size_at(samples: Sequence[RunSample], episodes: float, window: float) -> RunSample:
    """Return the medians of the samples from the window that ends with this number of episodes."""
    found = [sample for sample in samples if episodes - window < sample.episodes <= episodes]
    if not found:
        raise RuntimeError(
            f"no sample in the {window:.0f} episodes before {episodes:.0f}: play more episodes"
        )

    def medians(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
        return {name: statistics.median(table[name] for table in tables) for name in tables[0]}

    return RunSample(
        episodes=found[-1].episodes,
        memory=medians([sample.memory for sample in found]),
        descriptors=medians([sample.descriptors for sample in found]),
        processes=statistics.median(sample.processes for sample in found),
        files=medians([sample.files for sample in found]),
    )


def why_no_boxes() -> str | None:
    try:
        find_bubblewrap()
    except SandboxError as error:
        return str(error)
    return None


def why_no_browser(options: argparse.Namespace) -> str | None:
    if not options.python.exists():
        return f"no {options.python}: `make .browsergym-venv/.installed`, or --python"
    return (
        None if any(map(shutil.which, CHROMIUM)) else f"no browser on PATH ({', '.join(CHROMIUM)})"
    )


def write_report(parts: Mapping[str, MeasuredPart | str]) -> tuple[str, bool]:
    """Return the page, and whether all bounds hold. `parts`: what was found, or why nothing was measured."""
    checks = [
        check for part in parts.values() if isinstance(part, MeasuredPart) for check in part.checks
    ]
    lines = [
        "# Time and memory of environments",
        "",
        f"{measured_at()}, {os.cpu_count()} cores, no GPU. `python -m benchmarks.environments`: episodes "
        "of `openclaw-rl env run`, at a gateway behind which a stub gives one prepared reply at once. Memory is the "
        "proportional set size: a page that several processes share counts once. Load of the machine at the end: "
        f"{os.getloadavg()[1]:.1f}.",
    ]
    for name, part in parts.items():
        found = part.lines if isinstance(part, MeasuredPart) else [f"Not measured: {part}"]
        lines += ["", f"## {name.capitalize()}", "", *found]
    lines += [
        "",
        "## Bounds",
        "",
        "| | measured | bound | |",
        "|---|---|---|---|",
        *(one.as_row() for one in checks),
    ]
    return "\n".join(lines) + "\n", all(check.holds for check in checks)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.environments", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--sources", nargs="+", choices=SOURCES, default=SOURCES, help="whose growth is measured"
    )
    parser.add_argument(
        "--episodes", type=int, default=1000, help="of each source whose growth is measured"
    )
    parser.add_argument("--python", type=Path, default=PYTHON, help="with browsergym-miniwob")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    missing = {
        "trials": why_no_boxes(),
        "browsers": why_no_browser(options),
        "growth": why_no_boxes(),
    }
    measures = {"trials": measure_trials, "browsers": measure_browsers, "growth": measure_growth}
    parts = {name: missing[name] or measures[name](options) for name in options.parts}
    text, good = write_report(parts)
    print(text)
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(text, encoding="utf-8")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
