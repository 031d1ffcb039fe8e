"""An undo of the turn that gave a lesson takes the lesson and all that was practised from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select
from tests.practice.conftest import (
    SHORT,
    DivergingTrainer,
    MakeLoop,
    ScriptedReplies,
    add_lesson,
    settle,
)

from openclaw_rl.errors import OpenClawError
from openclaw_rl.gates.reply_source import GateReply, ReplyOrder
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.protocols import PolicyWork
from openclaw_rl.store import events, schema, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons, practice_turns, removal
from openclaw_rl.store.lineage import policies
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.undo import apply_undo, plan_undo, select_turns
from openclaw_rl.types import TurnState

Fill = Callable[..., list[str]]
LASTING = replace(SHORT, reinforced_at=9e9)


def undo(store: Store, *ids: str) -> int:
    with store.write() as conn:
        (plan,) = apply_undo(conn, [plan_undo(conn, select_turns(conn, ids=ids))], reason="wrong")
    return plan.safe


def trained(store: Store) -> list[set[str]]:
    """The turns of each version of the head's lineage, oldest first."""
    with store.read() as conn:
        lineage = policies.lineage(conn, policies.head(conn).version)[::-1]
        return [
            {use.turn for use in policies.uses_of_version(conn, version)} for version in lineage[1:]
        ]


def practised(store: Store) -> set[str]:
    with store.read() as conn:
        return set(practice_turns.turns_of_lessons(conn, ["aa"]))


def test_an_undo_of_a_turn_takes_its_practice_back(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    first = fill(store, 4)
    loop = make_loop(max_divergence=0.35)
    settle(loop)
    (word,) = fill(store, 1)
    add_lesson(store, LASTING, [word])
    settle(loop)
    last = fill(store, 3)
    settle(loop)
    practised_turns = practised(store)
    assert len(practised_turns) == 8
    assert trained(store)[-1] == {word, *last}
    with store.read() as conn:
        assert practice_turns.practised_versions(conn, range(10)) == {2, 3}, (
            "the others are of the person's turns"
        )
    undo(store, word)
    with store.read() as conn:
        assert lessons.get(conn, "aa") is None
        states = {
            turn.state for id_ in practised_turns if (turn := turns.get(conn, id_)) is not None
        }
    assert states == {TurnState.DROPPED}
    settle(loop)
    assert trained(store) == [set(first), set(last)], "only the other turns are trained on again"


def test_practice_of_a_forgotten_lesson_can_be_undone(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    (word,) = fill(store, 1)
    add_lesson(store, LASTING, [word])
    settle(make_loop(max_divergence=0.35))
    practised_turns = practised(store)
    with store.write() as conn:
        removal.forget(conn, "aa", at=9e9)
        assert set(select_turns(conn, lesson="aa")) == practised_turns


def test_practice_of_a_forgotten_lesson_belongs_to_its_turn(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    word, other = fill(store, 2)
    add_lesson(store, LASTING, [word])
    with store.write() as conn:
        events.append(conn, lessons.MADE_EVENT, "aa", {"turn": word}, 9e9)
    settle(make_loop(max_divergence=0.35))
    with store.write() as conn:
        removal.forget(conn, "aa", at=9e9)
        assert set(practice_turns.turns_practised_from(conn, [word])) == practised(store)
        assert set(practice_turns.turns_practised_from(conn, [other])) < practised(store)


def test_other_evidence_keeps_a_lesson_and_its_practice(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    first, second = fill(store, 2)
    add_lesson(store, LASTING, [first, second])
    settle(make_loop(max_divergence=0.35))
    with store.read() as conn:
        assert practice_turns.turns_practised_from(conn, [first]) == sorted(
            turn for turn in practised(store) if _source(store, turn) == first
        )
        assert set(practice_turns.turns_practised_from(conn, [first, second])) == practised(store)


def _source(store: Store, turn: str) -> str:
    with store.read() as conn:
        return str(
            conn.exec_driver_sql(
                "SELECT source FROM practice_turns WHERE turn = ?", (turn,)
            ).scalar_one()
        )


def test_an_undo_of_another_turn_retrains_on_practice(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    """Nothing is generated again: the stored replies are the batch."""
    (word,) = fill(store, 1)
    bad, *others = fill(store, 3)
    add_lesson(store, LASTING, [word])
    loop = make_loop(max_divergence=0.35)
    settle(loop)
    before = trained(store)
    assert len(before) == 3
    from_bad = {turn for turn in practised(store) if _source(store, turn) == bad}
    undo(store, bad)
    settle(loop)
    assert trained(store) == [{word, *others}, *(batch - from_bad for batch in before[1:])]


def forget(store: Store) -> None:
    with store.write() as conn:
        removal.forget(conn, "aa", at=9.0)


def practise_once(loop: TrainLoop, store: Store) -> None:
    """Generate some replies of a round of practice, and train on none."""
    lease = loop._keeper.acquire()
    assert lease is not None
    policy = PolicyWork(
        head=_head(store), candidate=None, lease=lease, lease_now=loop._keeper.clock()
    )
    assert loop._parts.practice is not None
    loop._parts.practice.next_batch(policy)


def test_practice_of_a_forgotten_lesson_is_not_trained_on(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    (word,) = fill(store, 1)
    add_lesson(store, LASTING, [word])
    loop = make_loop(step_limit=1)
    while not practised(store):
        practise_once(loop, store)
    forget(store)
    settle(loop)
    assert trained(store) == []


class ForgettingTrainer(DivergingTrainer):
    """The lesson is forgotten while it steps."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        forget(self._store)
        return super().step(samples, out)


@pytest.mark.parametrize("gate", [False, True])
def test_a_lesson_forgotten_during_the_step_is_not_trained_on(
    store: Store, make_loop: MakeLoop, fill: Fill, tmp_path: Path, gate: bool
) -> None:
    (word,) = fill(store, 1)
    add_lesson(store, LASTING, [word])
    settle(make_loop(ForgettingTrainer(store), step_limit=1, gate=gate))
    assert trained(store) == []
    assert list((tmp_path / "policies").iterdir()) == []


def test_a_lesson_forgotten_at_the_last_reply_is_not_practised(
    store: Store, make_loop: MakeLoop, fill: Fill, replies: ScriptedReplies
) -> None:
    (word,) = fill(store, 1)
    add_lesson(store, LASTING, [word])
    answer = replies.generate

    def generate(orders: Sequence[ReplyOrder]) -> list[GateReply]:
        generated = answer(orders)
        if len(replies.orders) == 4:
            forget(store)
        return generated

    replies.generate = generate  # type: ignore[method-assign]
    settle(make_loop(step_limit=1))
    assert practised(store) == set()


def _head(store: Store) -> policies.Policy:
    with store.read() as conn:
        return policies.head(conn)


def test_an_undo_takes_the_practice_of_a_pinned_lesson_back(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    (word,) = fill(store, 1)
    add_lesson(store, replace(LASTING, is_pinned=True), [word])
    settle(make_loop(max_divergence=0.35))
    practised_turns = practised(store)
    assert practised_turns
    undo(store, word)
    with store.read() as conn:
        assert lessons.get(conn, "aa") is None
        states = {
            turn.state for id_ in practised_turns if (turn := turns.get(conn, id_)) is not None
        }
        assert states == {TurnState.DROPPED}
        assert policies.head(conn).version == 0


def test_undo_of_a_lesson_without_turns_fails_until_it_is_forgotten(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    """A pinned lesson stays when its turn is judged again and no longer gives it."""
    (word,) = fill(store, 1)
    add_lesson(store, replace(LASTING, is_pinned=True), [word])
    settle(make_loop(max_divergence=0.35))
    with store.write() as conn:
        removal.remove_evidence(conn, [word], at=9e9, keep_pinned=True)
        with pytest.raises(OpenClawError, match="no turn is left that gave lesson aa"):
            select_turns(conn, lesson="aa")
        removal.forget(conn, "aa", at=9e9)
        assert set(select_turns(conn, lesson="aa")) == practised(store)


def test_practice_with_an_earlier_text_is_not_trained_on(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    (word,) = fill(store, 1)
    add_lesson(store, LASTING, [word])
    loop = make_loop(step_limit=1)
    while not practised(store):
        practise_once(loop, store)
    earlier = practised(store)
    with store.write() as conn:
        removal.replace_text(conn, "aa", "One word.", at=9e9 + 1)
    settle(loop)
    assert trained(store)
    assert not earlier & set.union(*trained(store))


class EditingTrainer(DivergingTrainer):
    """The text of the lesson is replaced while it steps the first time."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store, self._has_edited = store, False

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        if not self._has_edited:
            self._has_edited = True
            with self._store.write() as conn:
                removal.replace_text(conn, "aa", "One word.", at=9e9 + 1)
        return super().step(samples, out)


@pytest.mark.parametrize("gate", [False, True])
def test_the_divergence_of_a_lesson_edited_during_the_step_is_dropped(
    store: Store, make_loop: MakeLoop, fill: Fill, gate: bool
) -> None:
    """The divergence that the step measured is that of the earlier text."""
    (word,) = fill(store, 1)
    add_lesson(store, LASTING, [word])
    loop = make_loop(EditingTrainer(store), step_limit=1, gate=gate)
    while not _is_edited(store):
        loop.run_once()
    with store.read() as conn:
        assert lessons.divergences_of(conn, "aa") == []
    settle(loop)
    with store.read() as conn:
        used = [turns.current_verdict(conn, id_) for batch in trained(store) for id_ in batch]
    assert {verdict.hints for verdict in used if verdict is not None} == {("One word.",)}


def _is_edited(store: Store) -> bool:
    with store.read() as conn:
        lesson = lessons.get(conn, "aa")
    return lesson is not None and lesson.text == "One word."


def test_a_prompt_undone_during_the_round_is_not_practised(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    """The lesson has other evidence. No version used the turn, so that the head stays."""
    evidence, undone = fill(store, 2)
    add_lesson(store, SHORT, [evidence])
    loop = make_loop(step_limit=1)
    assert loop.run_once()
    with store.write() as conn:
        apply_undo(conn, [plan_undo(conn, [undone])], reason="private")
    settle(loop)
    with store.read() as conn:
        sources = set(conn.execute(select(schema.practice_turns.c.source)).scalars())
    assert sources == {evidence}
