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

from benchmarks.demo import user_driver
from benchmarks.demo.cli_args import LARGEST_SEED, bounded_int, exit_on_error
from benchmarks.demo.learning_plot import AVERAGE_WINDOW, plot_learning
from benchmarks.demo.lesson_timeline import read_timeline
from benchmarks.demo.page_link import add_keep_option, show_page
from benchmarks.demo.personas import Persona
from benchmarks.demo.user_driver import ConversationLog, TasteEvaluation
from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from openclaw_rl.common.terminal import TerminalConsole
from openclaw_rl.evals.styles import TASTES, Taste
from openclaw_rl.evals.toy_world import Question, held_out_questions
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

# Seconds that the simulated user waits before each message.
MESSAGE_PAUSE = 0.08
# Replies after which the user takes a break, in which the trainer practises.
BREAK_AFTER = 60
# Seconds.
LONGEST_BREAK = 25.0


class LiveScreen:
    """Live view: the last replies, the reactions to them, and the share of satisfied reactions."""

    def __init__(self, console: TerminalConsole, taste: Taste, replies: int) -> None:
        self.console = console
        self._taste = taste
        self._progress = Progress(
            TextColumn("  {task.description}"),
            BarColumn(40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._task = self._progress.add_task("replies", total=replies)
        self._conversation = ConversationLog()
        self._printed_reactions = 0
        # In place of the scores.
        self.note = ""

    def update(self, talk: ConversationLog) -> None:
        self._conversation = talk
        self._progress.update(self._task, completed=len(talk.replies))
        if (
            not self.console.is_terminal
            and len(talk.reactions) >= self._printed_reactions + AVERAGE_WINDOW
        ):
            self._printed_reactions = len(talk.reactions)
            self.console.print(f"  {len(talk.replies):4} replies  {self._score_line()}")

    def _score_line(self) -> str:
        last = [u for _, u in self._conversation.reactions[-AVERAGE_WINDOW:]]
        if not last:
            return "waiting for reactions"
        share = sum(u.satisfied for u in last) / len(last)
        right = sum(u.correct for u in last) / len(last)
        version = self._conversation.replies[-1].version
        return f"policy v{version:<3} satisfied {share:4.0%}  right {right:4.0%}  (of the last {len(last)})"

    def __rich__(self) -> Group:
        table = Table(box=None, padding=(0, 1), show_header=False)
        table.add_column(width=5, style="dim")
        table.add_column(ratio=1)
        for spoken, thought in self._conversation.reactions[-3:]:
            table.add_row("user", Text(thought.question.text))
            table.add_row(f"v{spoken.version}", Text(spoken.text, style="cyan"))
            mood = "green" if thought.praised else "red"
            table.add_row("user", Text(thought.phrase, style=mood))
            table.add_row("", "")
        title = f"a user who likes {self._taste} answers (hidden from the system)"
        line = self.note or self._score_line()
        return Group(Panel(table, title=title, height=15), Text("  " + line), self._progress)


class PracticeBreak:
    """One break of the user: until the weights follow the lessons by themselves, or for `LONGEST_BREAK` seconds."""

    def __init__(self, system: SubprocessSystem, screen: LiveScreen) -> None:
        self._system = system
        self._screen = screen
        # Reactions before it; None: there was no break.
        self.after: int | None = None

    async def take_if_due(self, talk: ConversationLog) -> None:
        """Take the break if it is time."""
        if self.after is not None or len(talk.replies) < BREAK_AFTER or not self._system.practises:
            return
        self.after = len(talk.reactions)
        began = time.monotonic()
        learned = await asyncio.to_thread(self._system.wait_for_practice, LONGEST_BREAK, self._show)
        self._screen.note = ""
        texts = ", ".join(f'"{text}"' for text in learned)
        practice = f"learned by practice: {texts}" if texts else "no lesson is learned yet"
        message = f"the user took a break of {time.monotonic() - began:.0f} s after {self.after} reactions: {practice}"
        self._screen.console.print(f"  {message}", highlight=False, markup=False)

    def _show(self, note: str) -> None:
        self._screen.note = f"the user takes a break; {note}"


async def _measure_with_progress(
    console: TerminalConsole,
    system: SubprocessSystem,
    version: str,
    taste: Taste,
    questions: tuple[Question, ...],
) -> TasteEvaluation:
    progress = Progress(
        TextColumn("  {task.description}"), BarColumn(40), MofNCompleteColumn(), console=console
    )
    with progress:
        task = progress.add_task(f"held-out questions ({version})", total=len(questions))
        async with user_driver.openai_client(system.base_url, system.api_key) as api:
            return await user_driver.measure_taste(
                api, version, taste, questions, seen=lambda: progress.advance(task)
            )


async def _run_demo(
    console: TerminalConsole,
    system: SubprocessSystem,
    taste: Taste,
    seed: int,
    replies: int,
    out: Path,
) -> bool:
    questions = held_out_questions(100, random.Random(seed))
    name = system.config.model.name
    before = await _measure_with_progress(console, system, f"{name}@0", taste, questions)
    screen = LiveScreen(console, taste, replies)
    persona = Persona(taste=taste, seed=seed)
    rest = PracticeBreak(system, screen)
    live = (
        Live(screen, console=console, refresh_per_second=8)
        if console.is_terminal
        else contextlib.nullcontext()
    )
    with live:
        async with user_driver.openai_client(system.base_url, system.api_key) as api:
            talk = await user_driver.run_conversation(
                api,
                name,
                persona,
                replies=replies,
                pause=MESSAGE_PAUSE,
                seen=screen.update,
                between=rest.take_if_due,
            )
    screen.update(talk)
    version = await asyncio.to_thread(system.wait_until_settled)
    # Without lessons.
    after = await _measure_with_progress(console, system, f"{name}@{version}", taste, questions)
    _print_report(console, taste, talk, before, after, questions)
    picture = out / "learning.png"
    answered = [(spoken.id, spoken.version) for spoken, _ in talk.reactions]
    lesson = await asyncio.to_thread(read_timeline, system.config, answered)
    await asyncio.to_thread(plot_learning, picture, taste, talk, before, after, rest.after, lesson)
    console.print(f"\n  picture   {picture}")
    return not talk.failures and after.satisfaction > before.satisfaction


def _print_report(
    console: TerminalConsole,
    taste: Taste,
    talk: ConversationLog,
    before: TasteEvaluation,
    after: TasteEvaluation,
    questions: tuple[Question, ...],
) -> None:
    table = Table(title="held-out questions, before and after training", show_lines=True)
    for column in ("question", "before", "after"):
        table.add_column(column, ratio=1)
    changed = [i for i in range(len(questions)) if before.satisfied[i] != after.satisfied[i]]
    for i in (changed + [i for i in range(len(questions)) if i not in changed])[:4]:
        table.add_row(Text(questions[i].text), Text(before.replies[i]), Text(after.replies[i]))
    console.print(table)
    known = sum(u.known for _, u in talk.reactions)
    wrong = sum(u.is_wrong for _, u in talk.reactions)
    console.print(
        f"  likes {taste} answers: satisfied {before.satisfaction:.0%} -> {after.satisfaction:.0%}, "
        f"right {before.correctness:.0%} -> {after.correctness:.0%}\n"
        f"  {len(talk.replies)} replies from {len(talk.versions)} policy versions, {len(talk.failures)} rejected or "
        f"failed, longest silence {max((s.silence for s in talk.replies), default=0):.2f} s\n"
        f"  {len(talk.reactions)} text reactions: {known} with phrases that the rules match, {wrong} wrong on purpose"
    )
    for failure in talk.failures:
        console.print(Text(f"  failed: {failure}", "red"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Watch a small model learn a taste from a user's reactions."
    )
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    parser.add_argument(
        "--taste", choices=TASTES, help="default: random; always hidden from the system"
    )
    parser.add_argument("--method", choices=("binary", "opd", "combine"), default="combine")
    parser.add_argument(
        "--replies", type=bounded_int(1), default=200, help="number of replies [200]"
    )
    parser.add_argument("--seed", type=bounded_int(0, LARGEST_SEED), help="default: random")
    parser.add_argument("--backend", default="embedded", help="engine that samples")
    parser.add_argument(
        "--engine-python", help="Python interpreter with vllm, e.g. .vllm-venv/bin/python"
    )
    parser.add_argument(
        "--engine-url", help="address of a running vLLM server with the starter policy"
    )
    add_keep_option(parser)
    options = parser.parse_args()
    with exit_on_error():
        learned = _run_system(options)
    sys.exit(0 if learned else 1)


def _run_system(options: argparse.Namespace) -> bool:
    """Run system and demo. Return whether the model learned the taste."""
    seed = random.SystemRandom().randrange(10_000) if options.seed is None else options.seed
    taste = options.taste or random.Random(seed).choice(TASTES)
    console = TerminalConsole()
    began = time.monotonic()
    home = options.out / time.strftime("home-%Y%m%d-%H%M%S")
    title = f"  seed {seed}, method {options.method}, engine {options.backend}, home {home}"
    console.print(Text.assemble(("OpenClaw-RL demo", "bold"), title))
    console.print("  starting engine, gateway, collect, judge and train ...")
    chosen = {"train.method": options.method, "engine.backend": options.backend}
    chosen |= {"engine.python": options.engine_python, "engine.url": options.engine_url}
    with SubprocessSystem(scratch_config(home.resolve(), chosen)) as system:
        console.print(f"  ready after {time.monotonic() - began:.1f} s at {system.base_url}/v1")
        learned = asyncio.run(_run_demo(console, system, taste, seed, options.replies, options.out))
        show_page(console, system.config, home, is_kept=options.keep)
    console.print(
        f"  inspect the results: .venv/bin/openclaw-rl status --home {home}\n"
        f"\n  Your own: .venv/bin/openclaw-rl up (your model: --model-path PATH), then in any OpenAI client:\n"
        "    OPENAI_BASE_URL=http://127.0.0.1:8000/v1  OPENAI_API_KEY=$(.venv/bin/openclaw-rl key)  model: openclaw\n"
        f"  {time.monotonic() - began:.0f} s in total",
        # A line break would split a command.
        soft_wrap=True,
    )
    return learned


if __name__ == "__main__":
    main()
