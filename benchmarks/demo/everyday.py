"""`make demo MODEL=smollm2`: a person with an everyday taste talks to a real model, which learns the taste.

`openclaw-rl up` starts the real gateway, engine, judge and trainer. The simulated person sends only text messages,
through the official `openai` client over HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.demo import user_driver
from benchmarks.demo.cli_args import LARGEST_SEED, bounded_int, exit_on_error
from benchmarks.demo.everyday_person import (
    MAX_TOKENS,
    TEMPERATURE,
    EverydayPerson,
    held_out_prompts,
)
from benchmarks.demo.everyday_tastes import EVERYDAY_TASTES, EverydayTaste
from benchmarks.demo.page_link import add_keep_option, show_page
from benchmarks.demo.user_driver import SIDE_TRAFFIC
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from openclaw_rl.common.packaged_models import SMOLLM2
from openclaw_rl.common.terminal import TerminalConsole
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

MEASURED_QUESTIONS = 32
LONGEST_BREAK = 900.0
"""Seconds that the person waits, at most, for the trainer to practise what they said."""
_SHOWN_REPLIES = 4
_SHOWN_CHARS = 160


@dataclass(slots=True, kw_only=True)
class EverydayTalk:
    """A conversation: whether each reply was liked, the version that gave it, and the calls that failed."""

    liked: list[bool] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


async def measure_held_out(api: Any, model: str, console: TerminalConsole) -> list[str]:
    """Return the replies to the held-out questions, each in a conversation of its own, as side traffic."""
    questions = held_out_prompts()[:MEASURED_QUESTIONS]
    gate = asyncio.Semaphore(8)
    columns = (
        TextColumn("  {task.description}"),
        BarColumn(40),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(f"held-out questions ({model})", total=len(questions))

        async def ask(place: int, question: str) -> str:
            async with gate:
                reply = await api.chat.completions.create(
                    model=model,
                    messages=[{"role": "user", "content": question}],
                    temperature=TEMPERATURE,
                    max_tokens=MAX_TOKENS,
                    seed=place,
                    extra_headers=SIDE_TRAFFIC,
                )
                progress.advance(task)
                return str(reply.choices[0].message.content or "")

        return await asyncio.gather(
            *(ask(place, question) for place, question in enumerate(questions))
        )


class EverydayDemo:
    """One run: measure, talk, wait for practice, measure again."""

    def __init__(
        self, console: TerminalConsole, system: SubprocessSystem, taste: EverydayTaste, seed: int
    ) -> None:
        self._console = console
        self._system = system
        self._taste = taste
        self._person = EverydayPerson(taste=taste.name, seed=seed)
        self._noted: set[str] = set()

    async def run(self, replies: int) -> tuple[EverydayTalk, list[str], list[str]]:
        """Return the conversation, and the replies to the held-out questions before and after it."""
        name = self._system.config.model.name
        async with self._client() as api:
            before = await measure_held_out(api, f"{name}@0", self._console)
            talk = await self._talk(api, name, replies)
            await self._wait_for_practice()
            version = await asyncio.to_thread(self._system.wait_until_settled, LONGEST_BREAK)
            after = await measure_held_out(api, f"{name}@{version}", self._console)
        return talk, before, after

    def _client(self) -> Any:
        api = user_driver.openai_client(self._system.base_url, self._system.api_key)
        return api.with_options(timeout=600)

    async def _talk(self, api: Any, name: str, replies: int) -> EverydayTalk:
        talk = EverydayTalk()
        while len(talk.versions) < replies and len(talk.failures) < 3:
            history: list[dict[str, str]] = []
            while True:
                text = self._person.next_message(history)
                if text is None:
                    break
                self._show_reaction(talk)
                if len(talk.versions) >= replies:
                    break
                history.append({"role": "user", "content": text})
                self._say("you", text, "bold")
                try:
                    reply = await user_driver.stream_reply(
                        api, name, history, max_tokens=MAX_TOKENS, temperature=TEMPERATURE
                    )
                except Exception as error:  # noqa: BLE001 - any error is a missing reply, and is counted
                    talk.failures.append(f"{type(error).__name__}: {error}")
                    break
                talk.versions.append(reply.version)
                history.append({"role": "assistant", "content": reply.text})
                self._say(f"v{reply.version}", reply.text, "cyan")
                await asyncio.to_thread(self._show_new_lessons)
            self._show_reaction(talk)
        return talk

    def _show_reaction(self, talk: EverydayTalk) -> None:
        talk.liked = [reaction.satisfied for reaction in self._person.log]

    def _say(self, speaker: str, text: str, style: str) -> None:
        short = " ".join(text.split())
        cut = short if len(short) <= _SHOWN_CHARS else f"{short[:_SHOWN_CHARS]}…"
        self._console.print(
            Text.assemble((f"  {speaker:>5}  ", "dim"), (cut, style)), soft_wrap=True
        )

    def _show_new_lessons(self) -> None:
        for text in self._system.lesson_texts():
            if text not in self._noted:
                self._noted.add(text)
                self._console.print(Text(f"         noted: {text}", "green"))

    async def _wait_for_practice(self) -> None:
        """Wait until the weights follow the lessons without a prompt, or for the longest break."""
        began = time.monotonic()
        columns = (TextColumn("  {task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task("you take a break; the trainer practises", total=None)

            def show(note: str) -> None:
                progress.update(task, description=f"you take a break; {note[:120]}")

            learned = await asyncio.to_thread(self._system.wait_for_practice, LONGEST_BREAK, show)
        texts = ", ".join(f'"{text}"' for text in learned)
        result = f"learned: {texts}" if texts else "no lesson is learned to the end yet"
        self._console.print(
            f"  after a break of {time.monotonic() - began:.0f} s: {result}",
            highlight=False,
            markup=False,
        )


def print_result(
    console: TerminalConsole,
    taste: EverydayTaste,
    talk: EverydayTalk,
    before: Sequence[str],
    after: Sequence[str],
) -> None:
    """Print some replies before and after, and how many of all the person likes."""
    table = Table(
        title="held-out questions under the plain prompt: in the weights alone", show_lines=True
    )
    for column in ("question", "before", "after"):
        table.add_column(column, ratio=1)
    for question, old, new in list(zip(held_out_prompts(), before, after, strict=False))[
        :_SHOWN_REPLIES
    ]:
        table.add_row(Text(question), Text(old), Text(new))
    console.print(table)
    liked_before = sum(map(taste.is_met, before))
    liked_after = sum(map(taste.is_met, after))
    console.print(
        f"  the person likes: {taste.definition}\n"
        f"  satisfied in the weights alone: {liked_before} -> {liked_after} of {len(after)} held-out questions\n"
        f"  in the conversation: {sum(talk.liked)} of {len(talk.liked)} replies, with lessons in the prompt\n"
        f"  {len(talk.versions)} replies from {len(set(talk.versions))} policy versions, {len(talk.failures)} failed"
    )
    for failure in talk.failures:
        console.print(Text(f"  failed: {failure}", "red"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Watch a real model learn a taste from what a person says."
    )
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    parser.add_argument("--model", default=SMOLLM2.name, help=f"model.path [{SMOLLM2.name}]")
    parser.add_argument(
        "--taste", choices=EVERYDAY_TASTES, help="default: random; always hidden from the system"
    )
    parser.add_argument("--replies", type=bounded_int(1), default=16, help="number of replies [16]")
    parser.add_argument("--seed", type=bounded_int(0, LARGEST_SEED), help="default: random")
    add_keep_option(parser)
    arguments = parser.parse_args()
    with exit_on_error():
        learned = _run_system(arguments)
    sys.exit(0 if learned else 1)


def _run_system(arguments: argparse.Namespace) -> bool:
    """Run system and demo. Return whether the person likes more of the replies than before."""
    seed = random.SystemRandom().randrange(10_000) if arguments.seed is None else arguments.seed
    name = arguments.taste or random.Random(seed).choice(sorted(EVERYDAY_TASTES))
    taste = EVERYDAY_TASTES[name]
    console = TerminalConsole()
    began = time.monotonic()
    home = arguments.out / time.strftime("home-%Y%m%d-%H%M%S")
    console.print(
        Text.assemble(
            ("OpenClaw-RL demo", "bold"), f"  model {arguments.model}, seed {seed}, home {home}"
        )
    )
    console.print(
        "  starting engine, gateway, collect, judge and train (the first time, the model is fetched) ..."
    )
    config = scratch_config(
        home.resolve(), {"model.path": arguments.model, "practice.seconds_per_hour": 3600}
    )

    def show_note(note: str) -> None:
        console.print(Text(f"  {note}", "dim"))

    with SubprocessSystem(config, on_note=show_note) as system:
        console.print(f"  ready after {time.monotonic() - began:.1f} s at {system.base_url}/v1")
        talk, before, after = asyncio.run(
            EverydayDemo(console, system, taste, seed).run(arguments.replies)
        )
        show_page(console, system.config, home, is_kept=arguments.keep)
    print_result(console, taste, talk, before, after)
    console.print(
        f"  inspect the results: .venv/bin/openclaw-rl status --home {home}\n"
        f"  {time.monotonic() - began:.0f} s in total",
        soft_wrap=True,
    )
    return not talk.failures and sum(map(taste.is_met, after)) > sum(map(taste.is_met, before))


if __name__ == "__main__":
    main()
