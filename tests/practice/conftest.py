"""A store with a person's turns and a lesson, replies from a script, and a loop that practises."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.train.conftest import (
    builder,
    closed_leases,
    fill,
    head,
    judged,
    renderer,
    starter_identity,
    store,
)

from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.common.rules.lesson_topics import load_topics
from openclaw_rl.gates.candidate_gate import CandidateGate
from openclaw_rl.gates.reply_source import DelayCode, GateReply, RepliesDelayed, ReplyOrder
from openclaw_rl.methods.types import LessonGap, Sample, StepResult
from openclaw_rl.practice.examined_lessons import TeachingCheck
from openclaw_rl.practice.prompts import PromptSelector
from openclaw_rl.practice.session import PracticeSession
from openclaw_rl.settings.load import train_settings
from openclaw_rl.settings.schema_gate import GateConfig
from openclaw_rl.settings.schema_practice import PracticeConfig
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train.context import LoopParts
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder

__all__ = [
    "builder",
    "closed_leases",
    "fill",
    "head",
    "judged",
    "renderer",
    "starter_identity",
    "store",
]
SHORT = Lesson(
    id="aa",
    key="key",
    text="Keep answers short.",
    topic="length/short",
    made_at=1.0,
    reinforced_at=1.0,
    weight=3.0,
)
LONG = replace(
    SHORT, id="bb", text="Give long answers.", topic="length/long", made_at=2.0, reinforced_at=2.0
)


@dataclass
class ScriptedReplies:
    """`ReplySource`: each reply is two tokens and a stop token; `refuse`: an error to raise instead."""

    stop: int
    refuse: Exception | None = None
    orders: list[ReplyOrder] = field(default_factory=list)
    busy: bool = False  # people's replies are running

    def generate(self, orders: Sequence[ReplyOrder]) -> list[GateReply]:
        """See `ReplySource.generate`."""
        if self.refuse is not None:
            raise self.refuse
        if self.busy and not all(order.beside for order in orders):
            raise RepliesDelayed("replies to people are running", DelayCode.BUSY)
        self.orders += orders
        logprobs = np.full(3, -1.0, np.float32)
        return [
            GateReply(
                token_ids=np.array([65 + order.seed % 20, 66, self.stop], np.int32),
                logprobs=logprobs,
                finish="stop",
            )
            for order in orders
        ]


def gaps_of(samples: Sequence[Sample], share: float) -> dict[str, LessonGap]:
    """The same missing share of the lesson for each sample with a hint."""
    return {
        sample.turn: LessonGap(missing=share, effect=1.0)
        for sample in samples
        if sample.hinted_prompts
    }


class DivergingTrainer(ScriptedTrainer):
    """Its steps report a divergence that starts at 0.4 and halves with each step."""

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        before = self.steps
        result = super().step(samples, out)
        return replace(result, lesson_gaps=gaps_of(samples, 0.4 * 0.5**before))


def add_lesson(store: Store, lesson: Lesson, turns: Sequence[str] = ()) -> None:
    with store.write() as conn:
        lessons.add_lesson(conn, replace(lesson, weight=0.0))
        for turn in turns:
            lessons.reinforce(conn, lesson.id, turn, at=lesson.reinforced_at)
        if turns:
            lessons.set_weight(conn, lesson.id, lesson.weight, at=lesson.reinforced_at)


@pytest.fixture
def replies(builder: SampleBuilder) -> ScriptedReplies:
    return ScriptedReplies(builder.renderer.stop_token_ids[0])


MakeLoop = Callable[..., TrainLoop]


@pytest.fixture
def make_loop(
    store: Store, builder: SampleBuilder, replies: ScriptedReplies, tmp_path: Path
) -> Iterator[MakeLoop]:
    """Returns a loop with a scripted trainer that practises; keywords are settings of practice."""
    opened: list[TrainLoop] = []

    def make(
        trainer: ScriptedTrainer | None = None,
        *,
        gate: bool = False,
        clock: Callable[[], float] = time.time,
        check: TeachingCheck | None = None,
        **settings: Any,
    ) -> TrainLoop:
        for loop in opened:
            loop.close()
        practice = PracticeSession(
            store,
            PracticeConfig(
                **{"replies": 4, "contrast_share": 0.0, "rehearsal_share": 0.0} | settings
            ),
            PromptSelector(
                renderer=builder.renderer,
                transient=EphemeralMatcher([]),
                key=store.secret,
                read_topics=lambda: load_topics(None),
                check=check,
            ),
            replies,
            clock=clock,
        )
        opened.append(
            TrainLoop(
                store,
                trainer or DivergingTrainer(),
                builder,
                train_settings({"batch_min": 4, "batch_max": 4}),
                tmp_path / "policies",
                LoopParts(
                    gate=CandidateGate(store, GateConfig(budget=0)) if gate else None,
                    practice=practice,
                ),
            )
        )
        return opened[-1]

    yield make
    for loop in opened:
        loop.close()


def settle(loop: TrainLoop) -> None:
    while loop.run_once():
        pass
