"""`make learn-days`: thirty simulated days of one person, with and without the gate and the watch of live satisfaction.

Each day has a subject. The taste drifts from one style to another: the share of sessions in which the person wants the
second one rises over the middle third of the days. One reaction in ten says the opposite of the truth. The trainer, the
judge and the engine are the real ones, in one process, on the starter; nothing depends on the speed of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import multiprocessing
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.in_process import Rooms
from benchmarks.setting_args import parse_settings, setting_argument
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from openclaw_rl.evals.cli_args import LARGEST_SEED, bounded_int, exit_on_error
from openclaw_rl.evals.personas import Persona, UserReaction
from openclaw_rl.evals.plots import markdown_table
from openclaw_rl.evals.styles import TASTES, Taste, has_style
from openclaw_rl.evals.toy_world import FAMILIES, Question, facts_of, is_correct, questions_about
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store.lineage import policies
from openclaw_rl.types import PolicyState

DAYS, TURNS = 30, 40
ARMS: Mapping[str, Mapping[str, Any]] = {"with": {}, "without": {"gate.kind": "off", "gate.watch": False}}
LAST_DAYS, AIM = 5, 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """A day. `satisfied`: share of its turns; `untrained`: what version 0 reaches on all questions of the subject."""

    number: int  # from 1
    subject: str
    drift: float  # share of the sessions in which the person wants the second taste
    satisfied: float
    untrained: float
    version: int  # that answers at the end
    rolled_back: int  # versions so far


@dataclass(slots=True, kw_only=True)
class Month:
    """The person of one arm: `tastes` are the one before the drift and the one after it."""

    tastes: tuple[Taste, Taste]
    seed: int
    days: int
    turns: int  # of a day, at least: a session is finished
    personas: dict[Taste, Persona] = field(default_factory=dict)
    replies: int = 0
    untrained: Mapping[Question, str] = field(default_factory=dict)  # replies of version 0

    async def run(self, rooms: Rooms, report: Callable[[Day], None]) -> None:
        chance = random.Random(self.seed)
        asked = [question for fact in facts_of("asked") for question in questions_about(fact)]
        replies = rooms.measure(0, self.tastes[0], asked).replies
        self.untrained = dict(zip(asked, replies, strict=True))
        subjects = chance.choices([family.name for family in FAMILIES], k=self.days)
        for taste in self.tastes:
            self.personas[taste] = Persona(taste=taste, seed=self.seed)
        for number, subject in enumerate(subjects, 1):
            drift = min(1.0, max(0.0, 3 * number / self.days - 1))
            report(await self._day(rooms, chance, number, subject, drift))

    async def _day(self, rooms: Rooms, chance: random.Random, number: int, subject: str, drift: float) -> Day:
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
        untrained = sum(self._untrained_share(taste, subject) for taste in wanted)
        with rooms.read_store() as conn:
            rolled_back = policies.count_by_state(conn).get(PolicyState.ROLLED_BACK, 0)
        return Day(
            number=number,
            subject=subject,
            drift=drift,
            satisfied=sum(reaction.satisfied for _, reaction in log) / len(log),
            untrained=untrained / len(log),
            version=version,
            rolled_back=rolled_back,
        )

    def _untrained_share(self, taste: Taste, subject: str) -> float:
        """Return the share of the subject's questions that version 0 answers correctly and to this taste."""
        asked = [question for question in self.untrained if question.fact.family == subject]
        liked = [is_correct(q, self.untrained[q]) and has_style(taste, self.untrained[q]) for q in asked]
        return sum(liked) / len(asked)

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


def draw_about(subject: str, rng: random.Random) -> Question:
    """Draw a question that may be asked in training, about a fact of one family."""
    return rng.choice(questions_about(rng.choice([fact for fact in facts_of("asked") if fact.family == subject])))


def run_arm(arm: str, given: argparse.Namespace) -> list[Day]:
    """Run one arm from an empty home; each day is appended to a file as it ends."""
    home, file = (given.out / arm).resolve(), days_file(given, arm)
    shutil.rmtree(home, ignore_errors=True)
    settings: dict[str, Any] = {
        "home": str(home),
        "train.seed": given.seed,
        "train.batch.max_wait": 1e9,
        "engine.max_batch": 256,
    }
    settings |= {"serve.lessons": "off", "practice.enabled": False}  # what the weights learn from turns is measured
    config = from_flat(settings | {"engine.prefill_chunk": 8192} | dict(ARMS[arm]) | parse_settings(given.sets))
    month = Month(tastes=tuple(given.tastes), seed=given.seed, days=given.days, turns=given.turns)
    found: list[Day] = []

    def report(day: Day) -> None:
        found.append(day)
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(dataclasses.asdict(day)) + "\n")

    async def run() -> None:
        async with Rooms(config) as rooms:
            await month.run(rooms, report)

    asyncio.run(run())
    shutil.rmtree(home / "policies", ignore_errors=True)
    return found


def days_file(given: argparse.Namespace, arm: str) -> Path:
    return Path(given.out) / f"{arm}.jsonl"


def run_arms(given: argparse.Namespace, console: Console) -> dict[str, list[Day]]:
    """Run the arms, each in a process of its own, and show how many days have passed."""
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    for arm in ARMS:
        days_file(given, arm).unlink(missing_ok=True)
    workers = ProcessPoolExecutor(given.parallel, multiprocessing.get_context("spawn"))
    with progress, workers as pool:
        tasks = {arm: progress.add_task(f"days {arm} the gate", total=given.days) for arm in ARMS}
        jobs = {arm: pool.submit(run_arm, arm, given) for arm in ARMS}
        while not all(job.done() for job in jobs.values()):
            time.sleep(1)
            for arm, task in tasks.items():
                file = days_file(given, arm)
                progress.update(task, completed=file.read_text().count("\n") if file.exists() else 0)
        return {arm: job.result() for arm, job in jobs.items()}


# ------------------------------------------------------------------------------------------------------------- report


def conclusion(days: Sequence[Day]) -> str:
    """Return what the aim says about one arm: days below the untrained policy, and the worst of the last days."""
    below = [str(day.number) for day in days if day.satisfied < day.untrained]
    worst = min(day.satisfied for day in days[-LAST_DAYS:])
    named = f" ({', '.join(below)})" if below else ""
    first = f"{len(below)} of {len(days)} days are below the untrained policy{named}"
    return f"{first}; the worst of the last {len(days[-LAST_DAYS:])} days has {worst:.2f} (aim: {AIM})"


def table(found: Mapping[str, Sequence[Day]]) -> str:
    """Return the days of both arms as a Markdown table."""
    header = ("day", "subject", "second taste", "untrained", "with the gate", "rolled back", "without")
    rows = []
    for one, other in zip(found["with"], found["without"], strict=True):
        shares = f"{one.untrained:.2f}", f"{one.satisfied:.2f}", one.rolled_back, f"{other.satisfied:.2f}"
        rows.append((one.number, one.subject.replace("_", " "), f"{one.drift:.0%}", *shares))
    return markdown_table(header, rows)


def write_report(given: argparse.Namespace, found: Mapping[str, Sequence[Day]]) -> None:
    """Write the page with the table, and the picture beside it."""
    picture = given.doc.parent / "images" / f"{given.doc.stem}.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    plot(picture, found)
    first, second = given.tastes
    given.doc.write_text(
        f"""# Thirty simulated days

`make learn-days` writes this page. One simulated person talks to the starter for {given.days} days of {given.turns}
turns. Each day has a subject. In the middle third of the days the taste drifts from *{first}* to *{second}*. One
reaction in ten says the opposite of the truth. A turn is satisfying if its reply is correct and to the person's taste.
*Untrained* is what version 0 reaches on all questions of the day's subject, with the day's tastes. *Without the gate*:
`gate.kind: off` and `gate.watch: false`.

- With the gate: {conclusion(found["with"])}.
- Without the gate: {conclusion(found["without"])}.

![Satisfaction by day](images/{picture.name})

{table(found)}
""",
        encoding="utf-8",
    )


def plot(path: Path, found: Mapping[str, Sequence[Day]]) -> None:
    """Write a PNG with the satisfaction of each day."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 4), layout="constrained")
    numbers = [day.number for day in found["with"]]
    axis.plot(numbers, [day.untrained for day in found["with"]], color="#9aa5b1", label="untrained")
    axis.plot(numbers, [day.satisfied for day in found["without"]], color="#2e4057", label="without the gate")
    axis.plot(numbers, [day.satisfied for day in found["with"]], color="#d1495b", linewidth=2.5, label="with the gate")
    axis.set(xlabel="day", ylabel="share of satisfying turns", ylim=(0, 1.03))
    axis.legend(frameon=False, loc="lower right")
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Satisfaction over thirty simulated days, with and without the gate.")
    parser.add_argument("--out", type=Path, default=Path("runs/learn-days"))
    parser.add_argument("--doc", type=Path, default=Path("docs/thirty_days.md"))
    parser.add_argument("--seed", type=bounded_int(0, LARGEST_SEED), default=1)
    parser.add_argument("--tastes", nargs=2, choices=TASTES, default=["short", "casual"], metavar="TASTE")
    parser.add_argument("--days", type=bounded_int(LAST_DAYS), default=DAYS)
    parser.add_argument("--turns", type=bounded_int(1), default=TURNS, help="of a day, at least")
    parser.add_argument("--parallel", type=bounded_int(1, 2), default=2, help="arms at once, each a process")
    parser.add_argument("--set", dest="sets", type=setting_argument, metavar="KEY=VALUE", action="append", default=[])
    return parser


def main() -> None:
    given = arguments().parse_args()
    with exit_on_error():
        given.out.mkdir(parents=True, exist_ok=True)
        console, began = Console(), time.monotonic()
        found = run_arms(given, console)
        write_report(given, found)
        for arm, days in found.items():
            console.print(f"{arm} the gate: {conclusion(days)}", markup=False)
        console.print(f"{(time.monotonic() - began) / 60:.0f} minutes; {given.doc}", markup=False)


if __name__ == "__main__":
    main()
