"""`make learn-real`: what a real model learns from a simulated person who talks everyday English, judged as shipped.

Before each message all that was said is judged, trained and practised. So what comes out is the same whatever the
machine is and does; it takes hours of processor time on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import learn_real_report
from benchmarks.demo.cli_args import LARGEST_SEED, bounded_int, exit_on_error
from benchmarks.demo.everyday_person import (
    MAX_TOKENS,
    TEMPERATURE,
    EverydayPerson,
    closed_questions,
    held_out_prompts,
)
from benchmarks.demo.everyday_tastes import EVERYDAY_TASTES, count_words
from benchmarks.in_process import Rooms
from benchmarks.learn_real_report import SHOWN_SAMPLES, RealPoint, RealRun
from benchmarks.setting_args import parse_settings, setting_argument
from rich.console import Console

from openclaw_rl.common.packaged_models import SMOLLM2
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lineage import policies
from openclaw_rl.types import PolicyState

PERPLEXITY_QUESTIONS = 16
"""Held-out questions whose replies by the base are scored again under the policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """One run. `more`: further settings, as dotted keys."""

    taste: str
    seed: int
    model: str
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of this run and no other; fit for a folder."""
        more = "".join(
            f"-{key.rpartition('.')[2]}={value}" for key, value in sorted(self.more.items())
        )
        return f"{Path(self.model).name}-{self.taste}-{self.seed}{more}"

    def settings(self, home: Path) -> dict[str, Any]:
        """Return the default settings, but for what makes the run independent of the machine's speed, and quicker."""
        return {
            "home": str(home),
            "model.path": self.model,
            "train.seed": self.seed,
            "train.batch.max_wait": 1e9,
            "practice.seconds_per_hour": 3600,
            "engine.max_batch": 64,
            "gate.workers": 16,
        } | self.more


def has_answer(reply: str, answers: Sequence[str]) -> bool:
    """Return whether one of the answers is in the reply as whole words."""
    return any(
        re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", reply, re.IGNORECASE) for answer in answers
    )


class Measurement:
    """Lets one person talk, and measures versions on questions that were never asked, under the plain prompt."""

    def __init__(self, person: Person, *, every: int, console: Console) -> None:
        """`every`: versions between two measurements."""
        self._person = person
        self._every = every
        self._console = console
        self._taste = EVERYDAY_TASTES[person.taste]
        self._user = EverydayPerson(taste=self._taste.name, seed=person.seed)
        self._points: list[RealPoint] = []
        self._with_lesson: list[bool] = []
        self._base_replies: tuple[str, ...] = ()
        self._last_replies: tuple[str, ...] = ()
        self._began = time.process_time()

    async def run(self, home: Path, reactions: int) -> RealRun:
        """Run one person until they gave so many reactions and all practice is done."""
        config = from_flat(self._person.settings(home))
        async with Rooms(config, max_tokens=MAX_TOKENS) as rooms:
            self._base_replies = self._reply_to_held_out(rooms, 0)
            self._measure(rooms, 0)
            closed_before = self._count_right(rooms, 0)
            first_lesson = await self._talk(rooms, reactions)
            version = self._points[-1].version
            if version != (head := await rooms.settle()):
                self._measure(rooms, head)
                version = head
            closed_after = self._count_right(rooms, version)
            asked = held_out_prompts()[:PERPLEXITY_QUESTIONS]
            replies = self._base_replies[:PERPLEXITY_QUESTIONS]
            logprobs = [await rooms.mean_logprob(each, asked, replies) for each in (0, version)]
            with rooms.read_store() as conn:
                rows = policies.list_all(conn)
                lesson_rows = lessons.list_lessons(conn)
        return RealRun(
            name=self._person.name,
            taste=self._person.taste,
            seed=self._person.seed,
            model=self._person.model,
            reactions=len(self._user.log),
            liked=[reaction.satisfied for reaction in self._user.log],
            first_lesson=first_lesson,
            with_lesson=self._with_lesson,
            points=self._points,
            closed=(closed_before, closed_after),
            logprobs=(logprobs[0], logprobs[1]),
            rejected=[row.reason or "" for row in rows if row.state is PolicyState.REJECTED],
            lessons=[f"{row.text} ({row.state.value})" for row in lesson_rows],
            samples=self._last_replies[:SHOWN_SAMPLES],
            seconds=time.process_time() - self._began,
        )

    async def _talk(self, rooms: Rooms, reactions: int) -> int | None:
        """Let the person talk. Returns the number of reactions before the first lesson; None if there was none."""
        first_lesson: int | None = None
        while len(self._user.log) < reactions:
            history: list[dict[str, str]] = []
            while (text := self._user.next_message(history)) is not None:
                history.append({"role": "user", "content": text})
                seed = self._person.seed * 100_003 + len(self._user.log) * 7 + len(history)
                reply = await rooms.say(history, seed=seed, temperature=TEMPERATURE)
                history.append({"role": "assistant", "content": reply.text})
                if first_lesson is not None:
                    self._with_lesson.append(self._taste.is_met(reply.text))
                version = await rooms.settle()
                if first_lesson is None and rooms.has_lesson():
                    first_lesson = len(self._user.log)
                if version >= self._points[-1].version + self._every:
                    self._measure(rooms, version)
        return first_lesson

    def _reply_to_held_out(self, rooms: Rooms, version: int) -> tuple[str, ...]:
        conversations = [[{"role": "user", "content": prompt}] for prompt in held_out_prompts()]
        return rooms.replies_to(version, conversations, temperature=TEMPERATURE)

    def _measure(self, rooms: Rooms, version: int) -> None:
        replies = self._base_replies if version == 0 else self._reply_to_held_out(rooms, version)
        self._last_replies = replies
        point = RealPoint(
            version=version,
            reactions=len(self._user.log),
            satisfied=sum(map(self._taste.is_met, replies)),
            questions=len(replies),
            words=sum(map(count_words, replies)) / len(replies),
            distinct=len(set(replies)),
        )
        self._points.append(point)
        spent = time.process_time() - self._began
        self._console.print(
            f"  {self._person.name}: {spent:.0f} s, {point.reactions} reactions, version {version}: satisfied "
            f"{point.satisfied} of {point.questions}, {point.words:.0f} words",
            markup=False,
            highlight=False,
        )

    def _count_right(self, rooms: Rooms, version: int) -> int:
        """Return how many of the closed questions the greedy reply answers right."""
        questions = closed_questions()
        conversations = [[{"role": "user", "content": one.question}] for one in questions]
        replies = rooms.replies_to(version, conversations, temperature=0.0)
        return sum(
            has_answer(reply, one.answers) for reply, one in zip(replies, questions, strict=True)
        )


def run_person(
    person: Person, out: Path, *, reactions: int, every: int, console: Console
) -> RealRun:
    """Run one person in a fresh home, which is removed except for its store and logs."""
    home = (out / person.name).resolve()
    shutil.rmtree(home, ignore_errors=True)
    run = asyncio.run(Measurement(person, every=every, console=console).run(home, reactions))
    shutil.rmtree(home / "policies", ignore_errors=True)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description="What a real model learns from a person who talks everyday English."
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/learn-real"),
        help="a run that is there is not repeated",
    )
    parser.add_argument("--doc", type=Path, help="page to write from all runs in --out [none]")
    parser.add_argument("--model", default=SMOLLM2.name, help="model.path")
    parser.add_argument(
        "--tastes", nargs="+", choices=EVERYDAY_TASTES, default=list(EVERYDAY_TASTES)
    )
    parser.add_argument("--seeds", type=bounded_int(1, 100), default=2, help="people of each taste")
    parser.add_argument("--seed", type=bounded_int(0, LARGEST_SEED), default=1)
    parser.add_argument("--reactions", type=bounded_int(1, 1000), default=40)
    parser.add_argument(
        "--every", type=bounded_int(1), default=6, help="versions between two measurements"
    )
    parser.add_argument(
        "--set",
        dest="sets",
        action="append",
        default=[],
        type=setting_argument,
        metavar="KEY=VALUE",
    )
    arguments = parser.parse_args()
    with exit_on_error():
        _run_all(arguments, Console())


def _run_all(arguments: argparse.Namespace, console: Console) -> None:
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "runs.jsonl"
    runs = learn_real_report.read_runs(file)
    known = {run.name for run in runs}
    more = dict(parse_settings(arguments.sets))
    people = [
        Person(taste=taste, seed=seed, model=arguments.model, more=more)
        for seed in range(arguments.seed, arguments.seed + arguments.seeds)
        for taste in arguments.tastes
    ]
    for number, person in enumerate(people, start=1):
        if person.name in known:
            continue
        console.print(
            f"person {number} of {len(people)}: {person.name}", markup=False, highlight=False
        )
        run = run_person(
            person,
            arguments.out,
            reactions=arguments.reactions,
            every=arguments.every,
            console=console,
        )
        runs.append(run)
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(dataclasses.asdict(run)) + "\n")
        console.print(learn_real_report.summary_line(run), markup=False, highlight=False)
    if arguments.doc is not None:
        learn_real_report.write_page(arguments.doc, runs, command=" ".join(sys.argv[1:]))


if __name__ == "__main__":
    main()
