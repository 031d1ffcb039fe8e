"""`make learn`: five tastes x three methods on the real system, measured before and after, written as a table."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import random
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.demo import user_driver
from benchmarks.demo.cli_args import LARGEST_SEED, bounded_int, exit_on_error
from benchmarks.demo.personas import Persona
from benchmarks.demo.user_driver import ConversationLog
from benchmarks.setting_args import parse_settings, setting_argument
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from openclaw_rl.evals.styles import TASTES, Taste
from openclaw_rl.evals.tables import markdown_table
from openclaw_rl.evals.toy_world import held_out_questions
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

METHODS = ("binary", "opd", "combine")
QUESTIONS = 400
REPLIES = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One taste learned by one method. `judged`, `agreed`: reactions with a score, and those where it was the truth."""

    taste: str
    method: str
    seed: int
    satisfied_before: float
    satisfied_after: float
    correct_before: float
    correct_after: float
    versions: int
    replies: int
    failures: int
    longest_silence: float
    reactions: int
    judged: int
    agreed: int
    seconds: float

    @property
    def passed(self) -> bool:
        return (
            self.satisfied_before <= 0.65
            and self.satisfied_after >= 0.90
            and self.correct_before - self.correct_after <= 0.10
            and self.versions >= 5
            and self.failures == 0
            and self.longest_silence < 5
        )


def one(taste: Taste, method: str, seed: int, home: Path, settings: Mapping[str, Any]) -> Run:
    """Start a system, measure, let the user talk, measure again."""
    began = time.monotonic()
    own = {
        "train.method": method,
        "train.seed": seed,
        "serve.lessons": "off",
        "practice.enabled": False,
    }
    with SubprocessSystem(scratch_config(home, own | dict(settings))) as system:
        questions = held_out_questions(QUESTIONS, random.Random(seed))
        name = system.config.model.name

        async def talk_and_measure() -> tuple[
            user_driver.TasteEvaluation, ConversationLog, user_driver.TasteEvaluation
        ]:
            async with user_driver.openai_client(system.base_url, system.api_key) as api:
                before = await user_driver.measure_taste(api, f"{name}@0", taste, questions)
                talk = await user_driver.run_conversation(
                    api, name, Persona(taste=taste, seed=seed), replies=REPLIES, pause=0.05
                )
                head = await asyncio.to_thread(system.wait_until_settled)
                return (
                    before,
                    talk,
                    await user_driver.measure_taste(api, f"{name}@{head}", taste, questions),
                )

        before, talk, after = asyncio.run(talk_and_measure())
        judged, agreed = accuracy(system.config.store_path, talk)
    return Run(
        taste=taste,
        method=method,
        seed=seed,
        satisfied_before=before.satisfaction,
        satisfied_after=after.satisfaction,
        correct_before=before.correctness,
        correct_after=after.correctness,
        versions=len(talk.versions),
        replies=len(talk.replies),
        failures=len(talk.failures) + sum(not s.finished for s in talk.replies),
        longest_silence=max((s.silence for s in talk.replies), default=0.0),
        reactions=len(talk.reactions),
        judged=judged,
        agreed=agreed,
        seconds=time.monotonic() - began,
    )


def accuracy(store_path: Path, talk: ConversationLog) -> tuple[int, int]:
    """How many reactions the judge scored, and how many of those scores were the user's true opinion."""
    store = Store.open(store_path, create=False)
    judged = agreed = 0
    try:
        with store.read() as conn:
            for spoken, thought in talk.reactions:
                verdict = turns.current_verdict(conn, spoken.id)
                if verdict is not None and verdict.score:
                    judged += 1
                    agreed += (verdict.score > 0) == thought.satisfied
    finally:
        store.close()
    return judged, agreed


def table(runs: list[Run]) -> str:
    """The runs as Markdown, with the totals that the promise is about."""
    head = (
        "taste",
        "method",
        "satisfied",
        "correct",
        "versions",
        "replies",
        "failed",
        "longest silence",
        "met",
    )
    rows = [
        (
            r.taste,
            r.method,
            f"{r.satisfied_before:.3f} → {r.satisfied_after:.3f}",
            f"{r.correct_before:.3f} → {r.correct_after:.3f}",
            r.versions,
            r.replies,
            r.failures,
            f"{r.longest_silence:.2f} s",
            "yes" if r.passed else "no",
        )
        for r in runs
    ]
    falls = [r.correct_before - r.correct_after for r in runs]
    judged = sum(r.judged for r in runs)
    agreed = sum(r.agreed for r in runs)
    reactions = sum(r.reactions for r in runs)
    return "\n".join(
        (
            markdown_table(head, rows),
            "",
            f"- {sum(r.passed for r in runs)} of {len(runs)} runs met every bound.",
            f"- Correctness fell by {sum(falls) / len(falls):.3f} on average, by {max(falls):.3f} at most.",
            f"- The rules gave a score to {judged} of {reactions} reactions ({judged / reactions:.0%}); {agreed} of "
            f"those ({agreed / max(judged, 1):.0%}) were the user's true opinion (a tenth of the reactions are wrong "
            "on purpose).",
            f"- {sum(r.seconds for r in runs) / 60:.0f} minutes in total.",
        )
    )


PREFACE = f"""# Learning benchmark: five tastes, three methods

Made by `make learn` on the shipped starter policy. Each row is a fresh system (`openclaw-rl up`) and one simulated
user with one taste. The user gets {REPLIES} replies through the official `openai` client and reacts in text only:
more than half of the reactions use phrases that the rules do not match, and a tenth are wrong on purpose. A reply is
satisfying if it is correct and matches the taste. Satisfaction and correctness are measured at temperature 1 on
{QUESTIONS} questions that the user never asked: once before learning (version 0) and once after it (newest version),
with the same seeds. The column "met" says whether a run met all bounds: satisfied at most 0.65 before and at least
0.90 after, correctness down by at most 0.10, at least five versions served, no failed reply, no silence of 5 s.

"""


def plan(seed: int) -> Iterator[tuple[Taste, str, int]]:
    for number, taste in enumerate(TASTES):
        for method in METHODS:
            yield taste, method, seed + number


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Five tastes x three methods, measured on the real system."
    )
    parser.add_argument("--out", type=Path, default=Path("runs/learn"))
    parser.add_argument("--doc", type=Path, default=Path("docs/results/learning.md"))
    parser.add_argument("--seed", type=bounded_int(0, LARGEST_SEED), default=1)
    parser.add_argument(
        "--set",
        dest="sets",
        type=setting_argument,
        metavar="KEY=VALUE",
        action="append",
        default=[],
    )
    parser.add_argument("--only", help="taste or method, or taste/method")
    given = parser.parse_args()
    wanted = [
        p
        for p in plan(given.seed)
        if not given.only or given.only in (p[0], p[1], f"{p[0]}/{p[1]}")
    ]
    if not wanted:
        parser.error(
            f"argument --only: expected one of {', '.join((*TASTES, *METHODS))}, or a taste/method, got {given.only!r}"
        )
    with exit_on_error():
        _run(given, wanted)


def _run(given: argparse.Namespace, wanted: list[tuple[Taste, str, int]]) -> None:
    given.out.mkdir(parents=True, exist_ok=True)
    console = Console()
    runs = []
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    with progress, (given.out / "runs.jsonl").open("a", encoding="utf-8") as file:
        task = progress.add_task("runs", total=len(wanted))
        for taste, method, seed in wanted:
            home = (given.out / f"{taste}-{method}-{seed}").resolve()
            shutil.rmtree(home, ignore_errors=True)
            run = one(taste, method, seed, home, parse_settings(given.sets))
            runs.append(run)
            file.write(json.dumps(dataclasses.asdict(run)) + "\n")
            file.flush()
            console.print(
                f"{taste:9} {method:8} satisfied {run.satisfied_before:.3f} -> {run.satisfied_after:.3f}  correct "
                f"{run.correct_before:.3f} -> {run.correct_after:.3f}  versions {run.versions}  {run.seconds:.0f} s"
            )
            progress.advance(task)
    console.print(table(runs), markup=False)
    if not given.only and not given.sets:
        given.doc.write_text(PREFACE + table(runs) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
