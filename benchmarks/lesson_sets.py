"""Pairs and triples of wishes in six languages: are answers right with them, and what leaves the prompt?

Each set is made to lessons of a person of their own. The real gateway chooses them for a prompt, examines them, and
chooses again. Other questions than those of the examination are then answered with all wishes, with those that stayed,
and with none. Writes a Markdown table to --out, or prints it.

    python -m benchmarks.lesson_sets [--model PATH] [--sets 40] [--questions 10] [--seconds 600] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.demo.cli_args import bounded_int, exit_on_error
from benchmarks.in_process import InProcess

from openclaw_rl.common.rules.rule_files import load_rule_files, rules_path
from openclaw_rl.engines.embedded.model import EmbeddedModel
from openclaw_rl.engines.embedded.scheduler import EmbeddedEngine
from openclaw_rl.examination.probe_set import Probe, load_probes
from openclaw_rl.gates.reply_source import ReplyOrder
from openclaw_rl.render.hint import lessons_hint, with_hint
from openclaw_rl.render.model_folder import ModelFiles, compute_identity
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store.db import Store
from openclaw_rl.store.file_digests import digest_files
from openclaw_rl.store.lessons import examinations, lessons
from openclaw_rl.store.lessons.lessons import Lesson
from openclaw_rl.store.lessons.scopes import PromptContext
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.home_folder import prepare_home
from openclaw_rl.types import Message

LANGUAGES = ("english", "german", "french", "spanish", "chinese", "japanese")
SET_SIZES = (2, 3)
PLANTED = (
    "Answer in Klingon.",
    "It is Canberra.",
    "The capital of Australia is Canberra, not Sydney.",
)
ANSWER_TOKENS = 48
ASKED: Sequence[Message] = ({"role": "user", "content": "How are you?"},)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of one set. Shares of the questions that the model answers right without lessons."""

    language: str
    wishes: Sequence[str]
    withdrawn: Sequence[str]
    right_with_all: float
    right_with_rest: float
    seconds: float  # of the examination, processor time

    @property
    def is_kept_promise(self) -> bool:
        """Whether answers are right within five points, or a lesson has left the prompt."""
        return bool(self.withdrawn) or self.right_with_all >= 0.95


def wishes_of(language: str) -> dict[str, list[str]]:
    """Return subject -> the hints of the rules of a language."""
    files, _ = load_rule_files(rules_path(None) / f"{language}.yaml")
    by_subject: dict[str, dict[str, None]] = {}
    for rule in files[0].rules:
        if rule.hint and rule.topic:
            by_subject.setdefault(rule.topic.partition("/")[0], {})[rule.hint] = None
    return {subject: list(hints) for subject, hints in by_subject.items()}


def choose_sets(count: int, seed: int) -> list[tuple[str, tuple[str, ...]]]:
    """Return (language, wishes) of `count` sets without contradictions, the languages in turn."""
    rng = random.Random(seed)
    decks: list[list[tuple[str, tuple[str, ...]]]] = []
    for language in LANGUAGES:
        wishes = wishes_of(language)
        sets = [
            (language, chosen)
            for size in SET_SIZES
            for subjects in itertools.combinations(wishes, size)
            for chosen in itertools.product(*(wishes[subject] for subject in subjects))
        ]
        decks.append(rng.sample(sets, len(sets)))
    in_turn = [one for some in zip(*decks, strict=False) for one in some]
    return in_turn[:count]


class Trial:
    """A gateway without a trainer, in this process."""

    def __init__(self, model: str, home: str, questions: int) -> None:
        config = from_flat({"model.path": model, "home": home})
        prepare_home(config)
        files = ModelFiles.from_config(config.model)
        self._renderer = Renderer(files)
        self._store = Store.open(config.store_path)
        self._identity = compute_identity(files, digest_files(self._store, files.weights))
        with self._store.write() as conn:
            policies.ensure_root(conn, base=model, identity=self._identity, at=time.time())
        core = EmbeddedEngine(EmbeddedModel.load(config.model, max_context=2048), config.engine)
        self._engine = InProcess(core)
        self._gateway = Gateway(
            config,
            store=self._store,
            engine=self._engine,
            renderer=self._renderer,
            identity=self._identity,
        )
        self._max_questions = questions
        self._questions: list[Probe] = []

    async def run(self, sets: Sequence[tuple[str, tuple[str, ...]]], seconds: float) -> list[Row]:
        """Return the rows of as many sets as begin within so many seconds."""
        keeper = asyncio.create_task(self._gateway.versions.run())
        began = time.monotonic()
        rows = []
        try:
            while self._gateway.versions.problem is not None:
                await asyncio.sleep(0.01)
            known = load_probes(None)
            plain = self._answer(known, ())
            right = [
                probe
                for probe, answer in zip(known, plain, strict=True)
                if probe.is_correct(answer)
            ]
            self._questions = right[: self._max_questions]
            for number, (language, wishes) in enumerate(sets):
                if time.monotonic() - began > seconds:
                    break
                rows.append(await self._try_set(f"person{number}", language, wishes))
                print(table_row(rows[-1]), flush=True)
        finally:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        return rows

    async def measure_capacity(self) -> tuple[int, float]:
        """Return how many lessons the base carries, and the processor seconds that it took to measure it."""
        assert self._gateway.examiner is not None
        began = time.process_time()
        await self._gateway.examiner.measure_capacity(lambda: False)
        with self._store.read() as conn:
            return examinations.lesson_capacity(conn, self._identity), time.process_time() - began

    async def close(self) -> None:
        await self._gateway.close()
        self._store.close()

    async def _try_set(self, key: str, language: str, wishes: Sequence[str]) -> Row:
        examiner = self._gateway.examiner
        assert examiner is not None
        with self._store.write() as conn:
            for place, text in enumerate(wishes):
                at = float(place + 1)
                lesson = Lesson(
                    id=f"{key}-{place}", key=key, text=text, made_at=at, reinforced_at=at
                )
                lessons.add_lesson(conn, lesson)
        await self._gateway.lessons.pick_lessons(ASKED, PromptContext(key=key), list)
        began = time.process_time()
        await examiner.examine_all()
        seconds = time.process_time() - began
        rest = await self._gateway.lessons.pick_lessons(ASKED, PromptContext(key=key), list)
        return Row(
            language=language,
            wishes=wishes,
            withdrawn=[wishes[int(id_.rpartition("-")[2])] for id_ in rest.withdrawn],
            right_with_all=self._share_right(wishes),
            right_with_rest=self._share_right(list(rest.texts.values())),
            seconds=seconds,
        )

    def _share_right(self, texts: Sequence[str]) -> float:
        if not texts or not self._questions:
            return 1.0
        answers = self._answer(self._questions, texts)
        right = [
            probe.is_correct(answer) for probe, answer in zip(self._questions, answers, strict=True)
        ]
        return sum(right) / len(right)

    def _answer(self, probes: Sequence[Probe], texts: Sequence[str]) -> list[str]:
        orders = [
            ReplyOrder(version=0, prompt_ids=ids, max_tokens=ANSWER_TOKENS, temperature=0.0, seed=0)
            for ids in self._prompts(probes, texts)
        ]
        replies = self._engine.answer(orders, self._renderer.stop_token_ids)
        decode = self._renderer.tokenizer.backend.decode
        return [decode(reply.token_ids.tolist(), skip_special_tokens=True) for reply in replies]

    def _prompts(self, probes: Sequence[Probe], texts: Sequence[str]) -> Iterator[list[int]]:
        for probe in probes:
            messages: list[Message] = [{"role": "user", "content": probe.question}]
            if texts:
                messages = with_hint(
                    messages, lessons_hint(texts), lambda message: False, self._renderer.hint_format
                )
            yield self._renderer.render(messages).prompt_ids.tolist()


def table_row(row: Row) -> str:
    wishes = " ".join(row.wishes)
    withdrawn = " ".join(row.withdrawn)
    shares = f"{row.right_with_all:.0%} | {row.right_with_rest:.0%}"
    return f"| {row.language} | {wishes} | {shares} | {withdrawn or 'none'} | {row.seconds:.1f} |"


def report(model: str, rows: Sequence[Row], capacity: tuple[int, float] | None) -> str:
    """Return the table and the figures over all sets, as Markdown."""
    columns = (
        "language",
        "wishes",
        "right with all",
        "right with the rest",
        "withdrawn",
        "processor s",
    )
    head = f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|"
    kept = sum(row.is_kept_promise for row in rows)
    lines = [f"# Lessons together: {model}", "", head, *map(table_row, rows), ""]
    lines.append(
        f"{kept} of {len(rows)} sets: right within five points, or a lesson has left the prompt."
    )
    rest = [row.right_with_rest for row in rows]
    lines.append(
        f"Right with what stayed: {sum(rest) / max(1, len(rest)):.1%} of those that are right without lessons."
    )
    if capacity is not None:
        lines.append(
            f"Measured capacity: {capacity[0]} lessons, in {capacity[1]:.0f} processor seconds."
        )
    return "\n".join(lines) + "\n"


async def run_trial(args: argparse.Namespace) -> str:
    sets = [("planted", (text,)) for text in PLANTED] if args.planted else []
    sets += choose_sets(args.sets, args.seed)
    with tempfile.TemporaryDirectory(prefix="openclaw-lesson-sets-") as home:
        trial = Trial(args.model, home, args.questions)
        try:
            rows = await trial.run(sets, args.seconds)
            capacity = await trial.measure_capacity() if args.capacity else None
        finally:
            await trial.close()
    return report(args.model, rows, capacity)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default="starter", help="a model folder; default: the shipped starter"
    )
    parser.add_argument("--sets", type=bounded_int(1, 400), default=40)
    parser.add_argument(
        "--questions", type=bounded_int(1, 20), default=10, help="beside those of the examination"
    )
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="after which no further set begins"
    )
    parser.add_argument("--seed", type=bounded_int(0), default=0)
    parser.add_argument("--planted", action="store_true", help="also lessons that must not teach")
    parser.add_argument(
        "--capacity", action="store_true", help="also measure how many lessons the model carries"
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with exit_on_error():
        text = asyncio.run(run_trial(args))
        if args.out is None:
            print(text)
        else:
            args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
