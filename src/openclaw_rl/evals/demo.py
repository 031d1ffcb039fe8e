"""`make demo`: a simulated user with a hidden taste talks to the real system, which learns the taste.

`openclaw-rl up` starts the real gateway, engine, judge and trainer. The simulated user sends only text messages,
through the official `openai` client over HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import time
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from openclaw_rl.evals import user_driver
from openclaw_rl.evals.cli_args import LARGEST_SEED, told, whole
from openclaw_rl.evals.personas import Persona
from openclaw_rl.evals.plots import WINDOW, plot
from openclaw_rl.evals.styles import TASTES, Taste
from openclaw_rl.evals.toy_world import Question, held_out_questions
from openclaw_rl.evals.user_driver import Measured, Talk
from openclaw_rl.supervisor.subprocess_system import System, scratch

PAUSE = 0.08  # seconds that the simulated user waits before each message


class Screen:
    """Live view: the last replies, the reactions to them, and the share of satisfied reactions."""

    def __init__(self, console: Console, taste: Taste, replies: int) -> None:
        self.console = console
        self._taste = taste
        self._progress = Progress(
            TextColumn("  {task.description}"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._task = self._progress.add_task("replies", total=replies)
        self._talk = Talk()
        self._said = 0

    def update(self, talk: Talk) -> None:
        self._talk = talk
        self._progress.update(self._task, completed=len(talk.spoken))
        if not self.console.is_terminal and len(talk.thought) >= self._said + WINDOW:
            self._said = len(talk.thought)
            self.console.print(f"  {len(talk.spoken):4} replies  {self._score()}")

    def _score(self) -> str:
        last = [u for _, u in self._talk.thought[-WINDOW:]]
        if not last:
            return "waiting for reactions"
        share = sum(u.satisfied for u in last) / len(last)
        right = sum(u.correct for u in last) / len(last)
        version = self._talk.spoken[-1].version
        return f"policy v{version:<3} satisfied {share:4.0%}  right {right:4.0%}  (of the last {len(last)})"

    def __rich__(self) -> Group:
        table = Table(box=None, padding=(0, 1), show_header=False)
        table.add_column(width=5, style="dim")
        table.add_column(ratio=1)
        for spoken, thought in self._talk.thought[-3:]:
            table.add_row("user", Text(thought.question.text))
            table.add_row(f"v{spoken.version}", Text(spoken.text, style="cyan"))
            mood = "green" if thought.praised else "red"
            table.add_row("user", Text(thought.phrase, style=mood))
            table.add_row("", "")
        title = f"a user who likes {self._taste} answers (hidden from the system)"
        return Group(Panel(table, title=title, height=15), Text("  " + self._score()), self._progress)


async def _measure(
    console: Console, system: System, version: str, taste: Taste, questions: tuple[Question, ...]
) -> Measured:
    progress = Progress(TextColumn("  {task.description}"), BarColumn(40), MofNCompleteColumn(), console=console)
    with progress:
        task = progress.add_task(f"held-out questions ({version})", total=len(questions))
        async with user_driver.client(system.base_url, system.key) as api:
            return await user_driver.measure(api, version, taste, questions, seen=lambda: progress.advance(task))


async def _demo(console: Console, system: System, taste: Taste, seed: int, replies: int, out: Path) -> bool:
    questions = held_out_questions(100, random.Random(seed))
    name = system.config.model.name
    before = await _measure(console, system, f"{name}@0", taste, questions)
    screen = Screen(console, taste, replies)
    persona = Persona(taste=taste, seed=seed)
    live = Live(screen, console=console, refresh_per_second=8) if console.is_terminal else contextlib.nullcontext()
    with live:
        async with user_driver.client(system.base_url, system.key) as api:
            talk = await user_driver.converse(api, name, persona, replies=replies, pause=PAUSE, seen=screen.update)
    screen.update(talk)
    await asyncio.to_thread(system.settle)
    after = await _measure(console, system, name, taste, questions)
    _tell(console, system, taste, talk, before, after, questions)
    picture = out / "learning.png"
    await asyncio.to_thread(plot, picture, taste, talk, before, after)
    console.print(f"\n  picture   {picture}")
    return not talk.failures and after.satisfaction > before.satisfaction


def _tell(
    console: Console,
    system: System,
    taste: Taste,
    talk: Talk,
    before: Measured,
    after: Measured,
    questions: tuple[Question, ...],
) -> None:
    table = Table(title="held-out questions, before and after training", show_lines=True)
    for column in ("question", "before", "after"):
        table.add_column(column, ratio=1)
    changed = [i for i in range(len(questions)) if before.satisfied[i] != after.satisfied[i]]
    for i in (changed + [i for i in range(len(questions)) if i not in changed])[:4]:
        table.add_row(Text(questions[i].text), Text(before.replies[i]), Text(after.replies[i]))
    console.print(table)
    known = sum(u.known for _, u in talk.thought)
    wrong = sum(u.wrong for _, u in talk.thought)
    console.print(
        f"  likes {taste} answers: satisfied {before.satisfaction:.0%} -> [bold green]{after.satisfaction:.0%}[/], "
        f"right {before.correctness:.0%} -> {after.correctness:.0%}\n"
        f"  {len(talk.spoken)} replies from {len(talk.versions)} policy versions, {len(talk.failures)} rejected or "
        f"failed, longest silence {max((s.silence for s in talk.spoken), default=0):.2f} s\n"
        f"  {len(talk.thought)} text reactions: {known} with phrases that the rules match, {wrong} wrong on purpose"
    )
    for failure in talk.failures:
        console.print(f"  [red]failed: {failure}[/]")


def _settings(given: argparse.Namespace) -> dict[str, str]:
    chosen = {
        "train.method": given.method,
        "engine.backend": given.backend,
        "engine.python": given.engine_python,
        "engine.url": given.engine_url,
    }
    return {key: value for key, value in chosen.items() if value is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description="Watch a small model learn a taste from a user's reactions.")
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    parser.add_argument("--taste", choices=TASTES, help="default: random; always hidden from the system")
    parser.add_argument("--method", choices=("binary", "opd", "combine"), default="combine")
    parser.add_argument("--replies", type=whole(1), default=250, help="number of replies [250]")
    parser.add_argument("--seed", type=whole(0, LARGEST_SEED), help="default: random")
    parser.add_argument("--backend", choices=("embedded", "vllm"), default="embedded")
    parser.add_argument("--engine-python", help="Python interpreter with vllm, e.g. .vllm-venv/bin/python")
    parser.add_argument("--engine-url", help="address of a running vLLM server with the starter policy")
    given = parser.parse_args()
    with told():
        learned = _run(given)
    sys.exit(0 if learned else 1)


def _run(given: argparse.Namespace) -> bool:
    """Run system and demo. Return whether the model learned the taste."""
    seed = random.SystemRandom().randrange(10_000) if given.seed is None else given.seed
    taste = given.taste or random.Random(seed).choice(TASTES)
    console, began = Console(), time.monotonic()
    home = given.out / time.strftime("home-%Y%m%d-%H%M%S")
    console.print(f"[bold]OpenClaw-RL demo[/]  seed {seed}, method {given.method}, engine {given.backend}, home {home}")
    console.print("  starting engine, gateway, collect, judge and train ...")
    with System(scratch(home.resolve(), _settings(given))) as system:
        console.print(f"  ready after {time.monotonic() - began:.1f} s at {system.base_url}/v1")
        learned = asyncio.run(_demo(console, system, taste, seed, given.replies, given.out))
    console.print(
        f"  inspect the results: [bold].venv/bin/openclaw-rl status --home {home}[/]\n"
        f"\n  Your own: [bold].venv/bin/openclaw-rl up[/] (your model: --model-path PATH), then in any OpenAI client:\n"
        "    OPENAI_BASE_URL=http://127.0.0.1:8000/v1  OPENAI_API_KEY=$(.venv/bin/openclaw-rl key)  model: openclaw\n"
        f"  {time.monotonic() - began:.0f} s in total",
        soft_wrap=True,  # a line break would split a command
    )
    return learned


if __name__ == "__main__":
    main()
