"""`make learn-protocol`: the personalisation protocol on the starter, for each arm, person and seed.

As in `benchmarks.sample_efficiency`, all stages run one after the other in one process: before each message, every
earlier turn is judged and trained on. The result does not depend on the speed of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import hashlib
import json
import multiprocessing
import random
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import personalisation_report
from benchmarks.demo.cli_args import LARGEST_SEED, bounded_int, exit_on_error
from benchmarks.demo.protocol import (
    MAX_SESSIONS,
    SessionLog,
    problems_of,
    run_session,
    sessions_until_satisfied,
)
from benchmarks.in_process import Rooms
from benchmarks.personalisation_report import FirstReplies, ProtocolRun
from benchmarks.setting_args import parse_settings, setting_argument
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from openclaw_rl.evals.personalisation.people import (
    PEOPLE,
    ModelPerson,
    PersonEndpoint,
    RulePerson,
    SimulatedPerson,
    preference_notes,
)
from openclaw_rl.evals.toy_world import Question, held_out_questions
from openclaw_rl.judge.chat_client import ChatClient
from openclaw_rl.settings.load import Config, from_flat

ARMS = ("none", "memory", "binary", "opd", "combine")
"""The methods, and the baselines without training: `memory` has what the person said as notes in the system message."""
_OPTIONS = ("sessions", "max_replies", "questions", "subtle", "person_url", "person_model")
# Questions that are answered together.
AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolCell:
    """One run of the grid. `more`: further settings, as dotted keys; `options`: of the protocol."""

    arm: str
    person: str
    seed: int
    more: Mapping[str, Any]
    options: Mapping[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings. A baseline never has enough turns for a step."""
        trained = self.arm in ("binary", "opd", "combine")
        own: dict[str, Any] = {"train.method": self.arm} if trained else _NO_TRAINING
        own = own | {"train.seed": self.seed, "train.batch.max_wait": 1e9}
        # Learning from turns is compared with notes.
        own |= {"serve.lessons": "off", "practice.enabled": False}
        return (
            own
            | {"engine.max_batch": AT_ONCE, "engine.prefill_chunk": 32 * AT_ONCE}
            | dict(self.more)
        )

    @property
    def name(self) -> str:
        """Name of this run and no other; fit for a folder."""
        rest = json.dumps([dict(self.more), dict(self.options)], sort_keys=True)
        return (
            f"{self.arm}-{self.person}-{self.seed}-{hashlib.sha256(rest.encode()).hexdigest()[:8]}"
        )


_NO_TRAINING = {"train.batch.min_turns": 10**6, "train.batch.max_turns": 10**6}


class ProtocolRunner:
    """Runs one cell: first replies to held-out questions, the sessions, and the held-out questions again."""

    def __init__(self, cell: ProtocolCell, given: argparse.Namespace) -> None:
        self._cell = cell
        self._given = given
        self._notes: Sequence[str] = ()
        self._replies = 0
        self._client: ChatClient | None = None

    async def run(self, home: Path) -> ProtocolRun:
        began = time.monotonic()
        config = from_flat({"home": str(home)} | self._cell.settings)
        self._person, self._reader = self._make_person(config), self._make_person(config)
        try:
            async with Rooms(config) as rooms:
                before = await self._measure(rooms, 0)
                sessions, after, version = await self._run_sessions(rooms)
        finally:
            if self._client is not None:
                await self._client.close()
        return ProtocolRun(
            name=self._cell.name,
            arm=self._cell.arm,
            person=self._cell.person,
            seed=self._cell.seed,
            satisfied=tuple(log.first.satisfied for log in sessions),
            reactions=sum(len(log.reactions) for log in sessions),
            before=before,
            after=after,
            versions=version,
            seconds=time.monotonic() - began,
        )

    def _make_person(self, config: Config) -> SimulatedPerson:
        profile = PEOPLE[self._cell.person]
        if self._given.person_url is None:
            return RulePerson(taste=profile.taste, seed=self._cell.seed, subtle=self._given.subtle)
        endpoint = PersonEndpoint(url=self._given.person_url, model=self._given.person_model)
        self._client = self._client or endpoint.make_client(config)
        return ModelPerson(profile, self._client)

    async def _run_sessions(self, rooms: Rooms) -> tuple[list[SessionLog], FirstReplies, int]:
        """Run sessions until three in a row satisfied, at least `sessions` and at most `MAX_SESSIONS`.

        Returns them, and the measures and the version after `sessions` of them.
        """
        draw = problems_of(self._cell.seed, self._cell.person)
        least = self._given.sessions
        sessions = [await self._run_session(rooms, draw()) for _ in range(least)]
        version = await rooms.settle()
        after = await self._measure(rooms, version)
        while (
            len(sessions) < MAX_SESSIONS
            and sessions_until_satisfied([s.first.satisfied for s in sessions]) is None
        ):
            sessions.append(await self._run_session(rooms, draw()))
        return sessions, after, version

    async def _run_session(self, rooms: Rooms, question: Question) -> SessionLog:
        # As it was when the session began: a changed prompt is another history.
        memory = preference_notes(self._notes)

        async def ask(history: Sequence[Mapping[str, Any]]) -> str:
            await rooms.settle()
            self._replies += 1
            reply = await rooms.say(
                [*memory, *history], seed=self._cell.seed * 100_003 + self._replies
            )
            return reply.text

        def remember(said: str) -> None:
            if self._cell.arm == "memory":
                self._notes = [*self._notes, said]

        log = await run_session(
            ask, self._person, question, max_replies=self._given.max_replies, heard=remember
        )
        await rooms.settle()
        return log

    async def _measure(self, rooms: Rooms, version: int) -> FirstReplies:
        """Ask held-out questions, each by itself, and let the person read the replies; it says nothing about them."""
        questions = held_out_questions(self._given.questions, random.Random(self._cell.seed))
        replies = rooms.first_replies(version, questions, preference_notes(self._notes))
        read = [
            await self._reader.react_to(q, reply)
            for q, reply in zip(questions, replies, strict=True)
        ]
        return FirstReplies(
            satisfied=sum(one.satisfied for one in read) / len(read),
            correct=sum(one.correct for one in read) / len(read),
        )


def run_grid(
    cells: Sequence[ProtocolCell], given: argparse.Namespace, console: Console
) -> list[ProtocolRun]:
    """Run the cells that are not in the file of runs yet, and add each to it. Returns the runs of all cells."""
    file = given.out / "runs.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    known = {run.name: run for run in map(ProtocolRun.from_json, lines)}
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    workers = ProcessPoolExecutor(given.parallel, multiprocessing.get_context("spawn"))
    with progress, workers as pool, file.open("a", encoding="utf-8") as out:
        task = progress.add_task(
            "runs", total=len(cells), completed=sum(cell.name in known for cell in cells)
        )
        for job in as_completed(
            [pool.submit(_run_cell, cell, given) for cell in cells if cell.name not in known]
        ):
            run = job.result()
            known[run.name] = run
            out.write(json.dumps(dataclasses.asdict(run)) + "\n")
            out.flush()
            console.print(personalisation_report.run_line(run), markup=False)
            progress.advance(task)
    return [known[cell.name] for cell in cells]


def _run_cell(cell: ProtocolCell, given: argparse.Namespace) -> ProtocolRun:
    home = (given.out / cell.name).resolve()
    shutil.rmtree(home, ignore_errors=True)
    try:
        return asyncio.run(ProtocolRunner(cell, given).run(home))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Sessions until three first replies in a row satisfied a person."
    )
    parser.add_argument("--out", type=Path, default=Path("runs/learn-protocol"))
    parser.add_argument("--doc", type=Path, help="page to update [none]")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--people", nargs="+", choices=list(PEOPLE), default=list(PEOPLE))
    parser.add_argument(
        "--seeds", nargs="+", type=bounded_int(0, LARGEST_SEED), default=[1, 2, 3, 4, 5]
    )
    parser.add_argument(
        "--sessions", type=bounded_int(1, MAX_SESSIONS), default=24, help="at least [24]"
    )
    parser.add_argument(
        "--max-replies", type=bounded_int(1), default=4, help="replies of a session at most [4]"
    )
    parser.add_argument(
        "--questions", type=bounded_int(1), default=200, help="held-out questions [200]"
    )
    parser.add_argument(
        "--subtle",
        type=float,
        default=0.0,
        help="share of reactions that the rules do not match [0]",
    )
    parser.add_argument(
        "--person-url", help="OpenAI-compatible endpoint of a model that simulates the people"
    )
    parser.add_argument("--person-model", help="its name there; its key is judge.api_key")
    parser.add_argument(
        "--parallel", type=bounded_int(1, 64), default=2, help="runs at once, each a process [2]"
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
    more = parse_settings(given.sets)
    options = {name: getattr(given, name) for name in _OPTIONS}
    cells = [
        ProtocolCell(arm=arm, person=person, seed=seed, more=more, options=options)
        for seed in given.seeds
        for person in given.people
        for arm in given.arms
    ]
    with exit_on_error():
        given.out.mkdir(parents=True, exist_ok=True)
        console = Console()
        began = time.monotonic()
        runs = run_grid(cells, given, console)
        for table in (
            personalisation_report.result_table(runs),
            personalisation_report.difference_table(runs),
        ):
            console.print(table, markup=False, soft_wrap=True)
        console.print(f"{(time.monotonic() - began) / 60:.0f} minutes")
        if given.doc is not None:
            personalisation_report.write_document(given.doc, runs, given)


if __name__ == "__main__":
    main()
