"""The budget of practice: steps for each word of the person, changes between opposites, and seconds of each hour."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from sqlalchemy import select
from tests.practice.conftest import SHORT, MakeLoop, ScriptedReplies, add_lesson, gaps_of, settle

from openclaw_rl.gates.reply_source import BrokenVersion, GateReply, NoGateway, ReplyOrder
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.practice.budget import STALLED_STEPS
from openclaw_rl.status import report
from openclaw_rl.store import schema
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons, practice_turns
from openclaw_rl.store.lineage import policies
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train.orchestrator import TrainLoop

Fill = Callable[..., list[str]]


@dataclass
class SlowReplies(ScriptedReplies):
    """Each call takes 10 seconds of the clock that it is."""

    now: float = field(default_factory=lambda: time.time() + 60.0)

    def __call__(self) -> float:
        return self.now

    def generate(self, orders: Sequence[ReplyOrder]) -> list[GateReply]:
        self.now += 10.0
        return super().generate(orders)


@pytest.fixture
def replies(builder: object) -> SlowReplies:
    return SlowReplies(builder.renderer.stop_token_ids[0])  # type: ignore[attr-defined]


def clocked(loop: TrainLoop, replies: SlowReplies) -> TrainLoop:
    assert loop._parts.practice is not None
    loop._parts.practice._clock = replies
    return loop


def practised(store: Store) -> list[str]:
    """The lesson of each step of practice, oldest first."""
    link, use = schema.practice_lessons.c, schema.uses.c
    with store.read() as conn:
        query = select(use.policy, link.lesson).join(schema.uses, use.turn == link.turn)
        return [row.lesson for row in conn.execute(query.distinct().order_by(use.policy))]


def test_each_step_on_people_allows_half_as_many_as_the_one_before(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    """A lesson that is not learned waits longer and longer, until the person says it again."""
    add_lesson(store, SHORT, fill(store, 1))
    loop = make_loop(step_limit=4, max_divergence=1e-9)
    settle(loop)
    fill(store, 3)
    steps = [len(practised(store))]
    for _ in range(4):
        settle(loop)
        steps.append(len(practised(store)))
        fill(store, 4)
    assert steps == [4, 6, 7, 8, 8]
    assert "and those that 4 steps on the person's turns allowed" in loop.note
    with store.write() as conn:
        lessons.set_weight(conn, "aa", 3.0, at=time.time())
    settle(loop)
    assert len(practised(store)) == 8 + 6, "with a step on the four turns"


class StalledTrainer(ScriptedTrainer):
    """The divergence that its steps report grows, or falls, by `factor` a step."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        value = 0.4 * self._factor**self.steps
        result = super().step(samples, out)
        return replace(result, lesson_gaps=gaps_of(samples, value))


@pytest.mark.parametrize(
    ("factor", "steps"), [(1.02, STALLED_STEPS), (1.0, STALLED_STEPS), (0.98, 20)]
)
def test_stalled_practice_waits_for_new_messages(
    store: Store, make_loop: MakeLoop, fill: Fill, factor: float, steps: int
) -> None:
    """Further steps would only move the policy away from right answers. A step on people's turns is a new chance."""
    add_lesson(store, SHORT, fill(store, 1))
    loop = make_loop(StalledTrainer(factor), step_limit=20, max_divergence=1e-9)
    settle(loop)
    assert len(practised(store)) == steps
    assert ("brought the weights no nearer" in loop.note) is (steps == STALLED_STEPS)
    fill(store, 3)
    settle(loop)
    assert len(practised(store)) > steps


def test_an_edit_allows_as_many_steps_as_a_new_word(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    add_lesson(store, replace(SHORT, reinforced_at=time.time()), fill(store, 1))
    loop = make_loop(step_limit=2, max_divergence=1e-9)
    settle(loop)
    assert len(practised(store)) == 2
    with store.write() as conn:
        lessons.edit_text(conn, "aa", "One word.", at=time.time())
    settle(loop)
    assert len(practised(store)) == 4


def test_practice_ends_after_its_seconds_of_an_hour(
    store: Store, make_loop: MakeLoop, fill: Fill, replies: SlowReplies
) -> None:
    """A step has four replies, two at once, so that it takes 20 s. `status` shows it."""
    add_lesson(store, SHORT, fill(store, 1))
    loop = clocked(make_loop(seconds_per_hour=39.0, max_divergence=1e-9), replies)
    settle(loop)
    assert len(practised(store)) == 2
    assert "s in the last hour, and practice.seconds_per_hour is 39" in loop.note
    with store.read() as conn:
        steps = [policy.metrics["seconds/batch"] for policy in policies.list_all(conn)[1:]]
        seconds = report.collect_status(conn, replies.now)["practice"]["seconds_of_last_hour"]
        assert seconds == pytest.approx(40.0 + sum(steps), abs=0.06)
        assert practice_turns.seconds_of_last_hour(conn, replies.now + 3600.0) == 0.0
    replies.now += 3580.0
    loop._next_check = 0.0
    settle(loop)
    assert len(practised(store)) == 4


def test_dropped_rounds_count_toward_the_budget(
    store: Store, make_loop: MakeLoop, fill: Fill, replies: SlowReplies
) -> None:
    """A lesson that is edited again and again may not generate replies without end."""
    add_lesson(store, SHORT, fill(store, 1))
    loop = clocked(make_loop(seconds_per_hour=25.0), replies)
    for number in range(5):
        loop.run_once()  # two of four replies
        with store.write() as conn:
            lessons.edit_text(conn, "aa", f"At most {number} words.", at=replies.now)
    settle(loop)
    assert practised(store) == []
    assert len(replies.orders) == 3 * 2
    assert "it took 30 s in the last hour, and practice.seconds_per_hour is 25" in loop.note
    with store.read() as conn:
        assert report.collect_status(conn, replies.now)["practice"]["seconds_of_last_hour"] == 30.0
        assert practice_turns.seconds_of_last_hour(conn, replies.now + 3600.0) == 0.0
    replies.now += 3600.0
    loop._next_check = 0.0
    settle(loop)
    assert set(practised(store)) == {"aa"}


@pytest.mark.parametrize("error", [NoGateway("no gateway runs"), BrokenVersion(1, "damaged")])
def test_a_round_that_the_gateway_ends_counts_toward_the_budget(
    store: Store, make_loop: MakeLoop, fill: Fill, replies: SlowReplies, error: Exception
) -> None:
    add_lesson(store, SHORT, fill(store, 1))
    loop = clocked(make_loop(), replies)
    loop.run_once()
    replies.refuse = error
    loop.run_once()
    with store.read() as conn:
        assert practice_turns.seconds_of_last_hour(conn, replies.now) == 10.0
