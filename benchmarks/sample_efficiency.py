"""`make learn-rate`: how many reactions of one person until the policy is to their taste, with and without practice.

A person is slow and a trainer is quick: before each message all that was said is judged, trained and swapped in. So
what comes out is the same whatever the machine is and does.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import multiprocessing
import random
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import sample_efficiency_report
from benchmarks.demo.cli_args import LARGEST_SEED, bounded_int, exit_on_error
from benchmarks.demo.personas import Persona
from benchmarks.demo.user_driver import ConversationLog
from benchmarks.in_process import Rooms
from benchmarks.sample_efficiency_report import Point, Run
from benchmarks.setting_args import on_off, parse_settings, setting_argument, share_argument
from benchmarks.taste_benchmark import accuracy
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from openclaw_rl.evals.phrases import INSTRUCTIONS
from openclaw_rl.evals.styles import OPPOSITE, TASTES, Taste, has_style
from openclaw_rl.evals.toy_world import Question, held_out_questions
from openclaw_rl.settings.load import Config, from_flat

BATCHES = (4,)
METHODS = ("combine",)
SEEDS = 5
QUESTIONS = 200
REACTIONS = 100
# Questions that are answered together.
AT_ONCE = 256
PARTS: Mapping[str, Mapping[str, Any]] = {
    "people": {},
    "without_practice": {"practice": [False], "seeds": 1},
    "prompt": {"lessons": [True], "reactions": 60},
    "change": {"change": True, "seeds": 1, "reactions": 80},
    "random_hints": {"random_hints": 0.3, "reactions": 60},
    "long": {"lessons": [True], "seeds": 1, "reactions": 300},
    "instructions": {"lessons": [True], "instructions": True, "seeds": 1, "reactions": 40},
}
"""Parts of the measurement, each with its own defaults of the arguments. Each is a section of the page."""
# Arguments that change no figure.
_NOT_MEASURED = ("--parts", "--out", "--doc", "--parallel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One cell of the table, for one person. `more`: further settings, as dotted keys."""

    method: str
    batch: int  # fresh turns of a batch
    replay: bool
    practice: bool = False
    lessons: bool = False  # in the prompt, until they are learned
    taste: Taste
    then: Taste | None = None  # of the second half of the reactions
    random_hints: float = 0.0  # share of the named styles that are any style
    seed: int
    more: Mapping[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """A batch is exactly `batch` fresh turns, with as many used ones where there is replay."""
        own = {
            "train.method": self.method,
            "train.seed": self.seed,
            "train.batch.min_turns": self.batch,
            "train.batch.max_turns": self.batch * (2 if self.replay else 1),
            "train.batch.max_uses": 2 if self.replay else 1,
            "train.batch.replay_ratio": 0.5,
            "train.batch.max_wait": 1e9,
            "practice.enabled": self.practice,
            # What comes out does not depend on the speed of the machine.
            "practice.seconds_per_hour": 3600,
            "serve.lessons": "until_learned" if self.lessons else "off",
        }
        return (
            own
            | {"engine.max_batch": AT_ONCE, "engine.prefill_chunk": 32 * AT_ONCE}
            | dict(self.more)
        )

    @property
    def name(self) -> str:
        """Of this setting and no other; fit for a folder."""
        more = "".join(
            f"-{key.rpartition('.')[2]}={value}" for key, value in sorted(self.more.items())
        )
        used = "".join(
            f"-{name}" for name in ("replay", "practice", "lessons") if getattr(self, name)
        )
        used += f"-random={self.random_hints:g}" if self.random_hints else ""
        taste = self.taste if self.then is None else f"{self.taste}-{self.then}"
        return f"{self.method}-{self.batch}{used}-{taste}-{self.seed}{more}"


def one(
    setting: Setting,
    home: Path,
    *,
    reactions: int = REACTIONS,
    questions: int = QUESTIONS,
    instructions: bool = False,
    command: str = "",
) -> Run:
    """A fresh system, one person, and what each version was like on questions that were never asked.

    `instructions`: also measure whether the first and the last version do what an instruction in the prompt says.
    """
    began = time.monotonic()
    config = from_flat({"home": str(home)} | setting.settings)
    asked = held_out_questions(questions, random.Random(setting.seed))
    watch = _Watch(setting, asked, config.store_path, instructions=instructions)
    talk = asyncio.run(watch.talk(config, reactions))
    judged, agreed = accuracy(config.store_path, talk)
    return Run(
        name=setting.name,
        method=setting.method,
        batch=setting.batch,
        replay=setting.replay,
        practice=setting.practice,
        lessons=setting.lessons,
        taste=setting.taste,
        then=setting.then,
        changed=watch.changed,
        next_reply=watch.next_reply(talk),
        obeys=tuple(watch.obeys),
        seed=setting.seed,
        points=tuple(watch.points),
        reactions=len(talk.reactions),
        judged=judged,
        agreed=agreed,
        seconds=time.monotonic() - began,
        asked=reactions,
        questions=questions,
        command=command,
    )


class _Watch:
    """Lets a person talk, and measures each version that comes into use meanwhile."""

    def __init__(
        self,
        setting: Setting,
        questions: Sequence[Question],
        store: Path,
        *,
        instructions: bool = False,
    ) -> None:
        self._setting = setting
        self._questions = questions
        self._store = store
        self._instructions = instructions
        # Of the first version and of the last.
        self.obeys: list[float] = []
        self._taste = setting.taste
        self.points: list[Point] = []
        # Reactions before the taste changed.
        self.changed: int | None = None
        # Reactions until there was a lesson.
        self._first_lesson: int | None = None

    async def talk(self, config: Config, reactions: int) -> ConversationLog:
        setting = self._setting
        talk = ConversationLog()
        async with Rooms(config) as rooms:
            self._measure(rooms, 0, talk)
            self._measure_obedience(rooms)
            persona = Persona(
                taste=setting.taste, seed=setting.seed, random_hints=setting.random_hints
            )
            half = reactions // 2 if setting.then is not None else reactions
            while len(talk.reactions) < half:
                await self._session(rooms, persona, talk)
            if setting.then is not None:
                self.changed = len(talk.reactions)
                self._taste = setting.then
                self._measure(rooms, self.points[-1].version, talk)
                persona = Persona(
                    taste=setting.then, seed=setting.seed + 1, random_hints=setting.random_hints
                )
                while len(talk.reactions) < reactions:
                    await self._session(rooms, persona, talk)
            self._measure_obedience(rooms)
        return talk

    def _measure_obedience(self, rooms: Rooms) -> None:
        """Measure the share of replies that are of the opposite style, where a hint in the prompt asks for it."""
        if self._instructions:
            other = OPPOSITE[self._taste]
            replies = rooms.hinted_replies(
                self.points[-1].version, self._questions, INSTRUCTIONS[other][0]
            )
            self.obeys.append(sum(has_style(other, reply) for reply in replies) / len(replies))

    def next_reply(self, talk: ConversationLog) -> bool | None:
        """Whether the reply to the first words that gave a lesson satisfied; None without any, or if not meant."""
        first = self._first_lesson
        if (
            first is None
            or first >= len(talk.reactions)
            or (first and talk.reactions[first - 1][1].is_wrong)
        ):
            return None
        return talk.reactions[first][1].satisfied

    async def _session(self, rooms: Rooms, persona: Persona, talk: ConversationLog) -> None:
        history: list[dict[str, str]] = []
        before = len(persona.log)
        while (text := persona.next_message(history)) is not None:
            if len(persona.log) > before:
                before = len(persona.log)
                talk.reactions.append((talk.replies[-1], persona.log[-1]))
            history.append({"role": "user", "content": text})
            talk.replies.append(
                await rooms.say(history, seed=self._setting.seed * 100_003 + len(talk.replies))
            )
            history.append({"role": "assistant", "content": talk.replies[-1].text})
            version = await rooms.settle()
            if self._first_lesson is None and rooms.has_lesson():
                self._first_lesson = len(talk.reactions)
            if version != self.points[-1].version:
                self._measure(rooms, version, talk)

    def _measure(self, rooms: Rooms, version: int, talk: ConversationLog) -> None:
        found = rooms.measure(version, self._taste, self._questions)
        self.points.append(
            Point(
                version=version,
                reactions=len(talk.reactions),
                judged=accuracy(self._store, talk)[0],
                satisfied=found.satisfaction,
                correct=found.correctness,
                distinct=len(set(found.replies)),
                entropy=rooms.entropy_of(version),
            )
        )


def plan(given: argparse.Namespace) -> Iterator[Setting]:
    """Every cell for every person: tastes and seeds are the same in each."""
    more = parse_settings(given.sets)
    people = [(taste, then) for taste in given.tastes for then in _later_tastes(taste, given)]
    axes = itertools.product(
        range(given.seeds),
        enumerate(people),
        given.methods,
        given.batches,
        given.replay,
        given.practice,
        given.lessons,
    )
    for number, (place, (taste, then)), method, batch, replay, practice, lessons in axes:
        person = place + number * len(people)
        if given.people is not None and person >= given.people:
            return
        yield Setting(
            method=method,
            batch=batch,
            replay=replay,
            practice=practice,
            lessons=lessons,
            taste=taste,
            then=then,
            random_hints=given.random_hints,
            seed=given.seed + person,
            more=more,
        )


def _later_tastes(taste: Taste, given: argparse.Namespace) -> list[Taste | None]:
    """The tastes to which a person changes; None: they do not."""
    return [other for other in given.tastes if other != taste] if given.change else [None]


def run_all(wanted: Sequence[Setting], given: argparse.Namespace, console: Console) -> list[Run]:
    """What is not in the file of runs yet is run and put there; the rest is read from it."""
    file = given.out / "runs.jsonl"
    asked = (given.reactions, given.questions, given.instructions)
    runs = _read_runs(file)
    known = {run.name: run for run in runs if (run.asked, run.questions, bool(run.obeys)) == asked}
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
            "people", total=len(wanted), completed=sum(s.name in known for s in wanted)
        )
        jobs = [pool.submit(_in_scratch, s, given) for s in wanted if s.name not in known]
        for job in as_completed(jobs):
            run = job.result()
            known[run.name] = run
            out.write(json.dumps(dataclasses.asdict(run)) + "\n")
            out.flush()
            console.print(sample_efficiency_report.line(run), markup=False)
            progress.advance(task)
    return [known[s.name] for s in wanted]


def _read_runs(file: Path) -> list[Run]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [Run.read(line) for line in lines]


def merge_runs(folders: Sequence[Path], part: str) -> list[Run]:
    """All runs of a part in folders of `--out`, by name; a run that is in several is taken from the last."""
    return list(
        {
            run.name: run for folder in folders for run in _read_runs(folder / part / "runs.jsonl")
        }.values()
    )


def _in_scratch(setting: Setting, given: argparse.Namespace) -> Run:
    home = (given.out / setting.name).resolve()
    shutil.rmtree(home, ignore_errors=True)
    run = one(
        setting,
        home,
        reactions=given.reactions,
        questions=given.questions,
        instructions=given.instructions,
        command=given.command,
    )
    shutil.rmtree(home / "policies", ignore_errors=True)
    return run


def arguments(part: str | None = None) -> argparse.ArgumentParser:
    """The command line, with the defaults of a part."""
    parser = argparse.ArgumentParser(
        description="Reactions until satisfied, with and without practice and lessons.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/learn-rate"),
        help="a run that is there is not repeated",
    )
    parser.add_argument(
        "--doc", type=Path, help="page whose sections of the measured parts are replaced [none]"
    )
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what is measured [all]"
    )
    parser.add_argument(
        "--report",
        nargs="+",
        type=Path,
        metavar="OUT",
        help="measure nothing; merge the runs of these folders",
    )
    parser.add_argument("--seed", type=bounded_int(0, LARGEST_SEED), default=1)
    parser.add_argument("--tastes", nargs="+", choices=TASTES, default=list(TASTES))
    parser.add_argument(
        "--methods", nargs="+", choices=(*METHODS, "opd", "sdpo", "sdft"), default=list(METHODS)
    )
    parser.add_argument(
        "--seeds", type=bounded_int(1, 100), default=SEEDS, help="people of each taste"
    )
    parser.add_argument(
        "--people", type=bounded_int(1), help="only so many of them, in order [all]"
    )
    parser.add_argument(
        "--practice", nargs="+", type=on_off, default=[True], help="on, off, or both [on]"
    )
    parser.add_argument(
        "--lessons", nargs="+", type=on_off, default=[False], help="in the prompt [off]"
    )
    parser.add_argument(
        "--change", action="store_true", help="each taste changes to each other one half-way"
    )
    parser.add_argument(
        "--random-hints",
        type=share_argument,
        default=0.0,
        help="share of the wishes that are any style's [0]",
    )
    parser.add_argument(
        "--instructions",
        action="store_true",
        help="ask for the opposite style in the prompt, after the last reaction",
    )
    parser.add_argument("--batches", nargs="+", type=bounded_int(1), default=list(BATCHES))
    parser.add_argument(
        "--replay", nargs="+", type=on_off, default=[False], help="on, off, or both [off]"
    )
    parser.add_argument("--reactions", type=bounded_int(1), default=REACTIONS)
    parser.add_argument("--questions", type=bounded_int(1), default=QUESTIONS)
    parser.add_argument(
        "--parallel", type=bounded_int(1, 64), default=2, help="people at once, each a process"
    )
    parser.add_argument(
        "--set",
        dest="sets",
        type=setting_argument,
        metavar="KEY=VALUE",
        action="append",
        default=[],
    )
    parser.set_defaults(**PARTS.get(part or "", {}))
    return parser


def part_command(part: str, words: Sequence[str]) -> str:
    """The command that repeats the runs of a part: the arguments `words` without those that change no figure."""
    kept = list[str]()
    keeps = True
    for word in words:
        if word.startswith("--"):
            keeps = word.partition("=")[0] not in _NOT_MEASURED
        kept += [word] if keeps else []
    return shlex.join(["python", "-m", "benchmarks.sample_efficiency", "--parts", part, *kept])


def main() -> None:
    words = sys.argv[1:]
    arguments().parse_args(words)
    with exit_on_error():
        report_or_measure(words)


def report_or_measure(words: Sequence[str]) -> None:
    """Measure the parts, or read their runs; print the tables and replace the sections of the page."""
    given = arguments().parse_args(words)
    console = Console()
    began = time.monotonic()
    found = dict[str, list[Run]]()
    for part in given.parts:
        found[part] = (
            merge_runs(given.report, part) if given.report else _measure_part(part, words, console)
        )
        if found[part]:
            console.print(f"{part}\n{sample_efficiency_report.table(found[part])}", markup=False)
    if not any(found.values()):
        raise ValueError(
            f"no runs in {', '.join(map(str, given.report))}: expected folders that --out named"
        )
    console.print(f"{(time.monotonic() - began) / 60:.0f} minutes")
    if given.doc is not None:
        sample_efficiency_report.write(
            given.doc, {part: runs for part, runs in found.items() if runs}
        )


def _measure_part(part: str, words: Sequence[str], console: Console) -> list[Run]:
    own = arguments(part).parse_args(words)
    own.command = part_command(part, words)
    own.out = own.out / part
    own.out.mkdir(parents=True, exist_ok=True)
    return run_all(list(plan(own)), own, console)


if __name__ == "__main__":
    main()
