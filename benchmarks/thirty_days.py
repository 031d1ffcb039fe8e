"""`make learn-days`: thirty simulated days of a person, with and without the gate and the watch of live satisfaction.

Each day has a subject. The taste drifts from one style to another: the share of sessions in which the person wants the
second one rises over the middle third of the days. One reaction in ten says the opposite of the truth. The trainer, the
judge and the engine are the real ones, in one process, on the starter; nothing depends on the speed of the machine.
A run that was interrupted begins again from its first day; those that are complete are not repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import multiprocessing
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks import thirty_days_report
from benchmarks.demo.cli_args import LARGEST_SEED, bounded_int, exit_on_error
from benchmarks.demo.personas import Persona, UserReaction
from benchmarks.ideal_assistant import IdealMonth, simulate_month
from benchmarks.in_process import Rooms
from benchmarks.setting_args import parse_settings, setting_argument
from benchmarks.thirty_days_report import LAST_DAYS, Day, Month
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from openclaw_rl.evals.styles import TASTES, Taste, has_style
from openclaw_rl.evals.toy_world import FAMILIES, Question, facts_of, is_correct, questions_about
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store.lineage import policies
from openclaw_rl.types import PolicyState

DAYS = 30
TURNS = 40
ARMS: Mapping[str, Mapping[str, Any]] = {
    "with": {},
    "without": {"gate.kind": "off", "gate.watch": False},
}
DRIFTS = ("short:casual", "short:long")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthRun:
    """One run: an arm, a seed, and the tastes before and after the drift."""

    arm: str
    seed: int
    tastes: tuple[Taste, Taste]

    @property
    def name(self) -> str:
        return f"{'-'.join(self.tastes)}-{self.seed}-{self.arm}"


@dataclass(slots=True, kw_only=True)
class DriftingPerson:
    """The person of one run: `tastes` are the one before the drift and the one after it."""

    tastes: tuple[Taste, Taste]
    seed: int
    days: int
    turns: int  # of a day, at least: a session is finished
    personas: dict[Taste, Persona] = field(default_factory=dict)
    replies: int = 0
    untrained: Mapping[Question, str] = field(default_factory=dict)  # replies of version 0

    async def run(self, rooms: Rooms, report: Callable[[Day], None]) -> None:
        chance = random.Random(self.seed)
        self.untrained = untrained_replies(rooms)
        subjects = draw_subjects(chance, self.days)
        for taste in self.tastes:
            self.personas[taste] = Persona(taste=taste, seed=self.seed)
        for number, subject in enumerate(subjects, 1):
            drift = min(1.0, max(0.0, 3 * number / self.days - 1))
            report(await self._day(rooms, chance, number, subject, drift))

    async def _day(
        self, rooms: Rooms, chance: random.Random, number: int, subject: str, drift: float
    ) -> Day:
        for persona in self.personas.values():
            persona.draw = partial(draw_about, subject)
        log: list[tuple[Taste, UserReaction]] = []
        version = 0
        while len(log) < self.turns:
            taste = self.tastes[chance.random() < drift]
            persona = self.personas[taste]
            known = len(persona.log)
            version = await self._session(rooms, persona)
            log += [(taste, reaction) for reaction in persona.log[known:]]
        wanted = [taste for taste, _ in log]
        untrained = sum(untrained_share(self.untrained, taste, subject) for taste in wanted)
        with rooms.read_store() as conn:
            states = policies.count_by_state(conn)
        return Day(
            number=number,
            subject=subject,
            drift=drift,
            satisfied=sum(reaction.satisfied for _, reaction in log) / len(log),
            untrained=untrained / len(log),
            version=version,
            rolled_back=states.get(PolicyState.ROLLED_BACK, 0),
            rejected=states.get(PolicyState.REJECTED, 0),
        )

    async def _session(self, rooms: Rooms, persona: Persona) -> int:
        history: list[dict[str, str]] = []
        version = 0
        while (text := persona.next_message(history)) is not None:
            history.append({"role": "user", "content": text})
            self.replies += 1
            reply = await rooms.say(history, seed=self.seed * 100_003 + self.replies)
            history.append({"role": "assistant", "content": reply.text})
            version = await rooms.settle()
        return version


def draw_subjects(chance: random.Random, days: int) -> list[str]:
    """Draw the subject of each day."""
    return chance.choices([family.name for family in FAMILIES], k=days)


def untrained_replies(rooms: Rooms) -> Mapping[Question, str]:
    """Return the reply of version 0 to each question that may be asked in training."""
    asked = [question for fact in facts_of("asked") for question in questions_about(fact)]
    return dict(zip(asked, rooms.first_replies(0, asked), strict=True))


def untrained_share(replies: Mapping[Question, str], taste: Taste, subject: str) -> float:
    """Return the share of the subject's questions that version 0 answers correctly and to this taste."""
    asked = [question for question in replies if question.fact.family == subject]
    return sum(is_correct(q, replies[q]) and has_style(taste, replies[q]) for q in asked) / len(
        asked
    )


def draw_about(subject: str, rng: random.Random) -> Question:
    """Draw a question that may be asked in training, about a fact of one family."""
    return rng.choice(
        questions_about(rng.choice([fact for fact in facts_of("asked") if fact.family == subject]))
    )


def run_month(run: MonthRun, given: argparse.Namespace) -> None:
    """Run one arm from an empty home; each day is appended to a file as it ends."""
    home = (given.out / run.name).resolve()
    file = days_file(given, run)
    shutil.rmtree(home, ignore_errors=True)
    file.unlink(missing_ok=True)
    settings: dict[str, Any] = {
        "home": str(home),
        "train.seed": run.seed,
        "train.batch.max_wait": 1e9,
    }
    # Speed alone.
    settings |= {"engine.max_batch": 256, "engine.prefill_chunk": 8192, "gate.workers": 16}
    # Nothing depends on the speed of the machine.
    settings["practice.seconds_per_hour"] = 3600
    config = from_flat(settings | dict(ARMS[run.arm]) | parse_settings(given.sets))
    person = DriftingPerson(tastes=run.tastes, seed=run.seed, days=given.days, turns=given.turns)
    began = time.monotonic()

    def report(day: Day) -> None:
        with file.open("a", encoding="utf-8") as out:
            minutes = (time.monotonic() - began) / 60
            out.write(
                json.dumps(dataclasses.asdict(dataclasses.replace(day, minutes=minutes))) + "\n"
            )

    async def run_days() -> None:
        async with Rooms(config, gate_replies=True) as rooms:
            await person.run(rooms, report)

    asyncio.run(run_days())
    shutil.rmtree(home / "policies", ignore_errors=True)


def days_file(given: argparse.Namespace, run: MonthRun) -> Path:
    return Path(given.out) / f"{run.name}.jsonl"


def read_days(given: argparse.Namespace, run: MonthRun) -> list[Day]:
    """Return the days that a run has had so far."""
    file = days_file(given, run)
    return (
        [Day(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
    )


def run_all(given: argparse.Namespace, console: Console) -> list[Month]:
    """Run what is not complete yet, each in a process of its own, and show how many days have passed."""
    runs = [
        MonthRun(arm=arm, seed=seed, tastes=drift)
        for seed in given.seeds
        for drift in given.drifts
        for arm in given.arms
    ]
    left = [run for run in runs if len(read_days(given, run)) < given.days]
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    workers = ProcessPoolExecutor(given.parallel, multiprocessing.get_context("spawn"))
    with progress, workers as pool:
        task = progress.add_task("runs", total=len(runs), completed=len(runs) - len(left))
        for job in as_completed([pool.submit(run_month, run, given) for run in left]):
            job.result()
            progress.advance(task)
    return [
        Month(arm=run.arm, seed=run.seed, tastes=run.tastes, days=tuple(read_days(given, run)))
        for run in runs
    ]


def simulate_ideal(given: argparse.Namespace) -> dict[tuple[Taste, Taste], list[IdealMonth]]:
    """Return months of the ideal assistant, who needs neither engine nor training, for each drift."""

    async def read_untrained(home: str) -> Mapping[Question, str]:
        async with Rooms(from_flat({"home": home})) as rooms:
            return untrained_replies(rooms)

    with tempfile.TemporaryDirectory() as home:
        replies = asyncio.run(read_untrained(home))
    share = cache(partial(untrained_share, replies))
    return {
        drift: [
            simulate_month(drift, draw_subjects(random.Random(seed), given.days), turns=given.turns, last=LAST_DAYS,
                           seed=seed, draw=draw_about, untrained=share)
            for seed in range(given.ideal_months)
        ]
        for drift in given.drifts
    }  # fmt: skip


def drift_argument(text: str) -> tuple[Taste, Taste]:
    """Parse two tastes (argparse `type`)."""
    first, _, second = text.partition(":")
    found = [taste for name in (first, second) for taste in TASTES if taste == name]
    if len(found) != 2:
        raise argparse.ArgumentTypeError(
            f"expected two of {', '.join(TASTES)}, e.g. short:long, got {text!r}"
        )
    return found[0], found[1]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Satisfaction over thirty simulated days, with and without the gate."
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/learn-days"),
        help="days of each run; it continues there",
    )
    parser.add_argument("--doc", type=Path, help="page to update [none]")
    parser.add_argument("--seeds", nargs="+", type=bounded_int(0, LARGEST_SEED), default=[1, 2, 3])
    parser.add_argument(
        "--drifts",
        nargs="+",
        type=drift_argument,
        metavar="TASTE:TASTE",
        default=[drift_argument(d) for d in DRIFTS],
    )
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=list(ARMS),
        default=list(ARMS),
        help="with and without the gate",
    )
    parser.add_argument("--days", type=bounded_int(LAST_DAYS), default=DAYS)
    parser.add_argument("--turns", type=bounded_int(1), default=TURNS, help="of a day, at least")
    parser.add_argument(
        "--ideal-months",
        type=bounded_int(1),
        default=100,
        help="of an ideal assistant, for comparison [100]",
    )
    parser.add_argument(
        "--parallel", type=bounded_int(1, 2), default=1, help="runs at once, each a process"
    )
    parser.add_argument(
        "--set",
        dest="sets",
        type=setting_argument,
        metavar="KEY=VALUE",
        action="append",
        default=[],
    )
    return parser


def main() -> None:
    given = arguments().parse_args()
    with exit_on_error():
        given.out.mkdir(parents=True, exist_ok=True)
        console = Console()
        months = run_all(given, console)
        console.print(thirty_days_report.summary_table(months), markup=False, soft_wrap=True)
        with console.status(f"{given.ideal_months} months of an ideal assistant, for comparison"):
            ideal = simulate_ideal(given)
        console.print(thirty_days_report.ideal_table(ideal), markup=False, soft_wrap=True)
        if given.doc is not None:
            thirty_days_report.write_page(given.doc, months, ideal, given.sets)


if __name__ == "__main__":
    main()
