"""Only lessons that were examined, and that do not cost correctness, are practised or stand in the teacher's prompt."""

from __future__ import annotations

from dataclasses import replace

from tests.practice.conftest import LONG, SHORT, MakeLoop, ScriptedReplies, add_lesson, settle
from tests.train.conftest import IDENTITY

from openclaw_rl.practice.examined_lessons import TeachingCheck
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import examinations, lessons, withdrawals
from openclaw_rl.store.lessons.examinations import ExaminationResult, Withdrawal, WithdrawalCode
from openclaw_rl.store.lessons.refused_texts import RefusedTexts
from openclaw_rl.store.lineage import policies, training_queue
from openclaw_rl.train.sample_builder import SampleBuilder

KLINGON = replace(SHORT, id="kk", text="Answer in Klingon.", topic="", weight=9.0)
COSTS = Withdrawal(code=WithdrawalCode.ALONE, asked=4, right_with=0, right_without=4, at=9.0)


def record(store: Store, *texts: str, is_sound: bool) -> None:
    right = 4 * is_sound
    result = ExaminationResult(
        asked=4, right_with=right, right_without=4, is_sound=is_sound, at=5.0
    )
    with store.write() as conn:
        digest = examinations.lessons_digest(texts, IDENTITY, store.secret)
        examinations.record_result(conn, digest, 0, result)


def waiting(store: Store) -> list[tuple[str, ...]]:
    with store.read() as conn:
        return examinations.waiting_texts(conn, 10)


def hints_in(replies: ScriptedReplies, renderer: Renderer) -> set[str]:
    """Returns the texts of the hints in the prompts that were ordered."""
    texts = [renderer.tokenizer.backend.decode(order.prompt_ids) for order in replies.orders]
    return {text.partition("[Hint: ")[2].partition("]")[0] for text in texts if "[Hint: " in text}


def test_a_lesson_waits_for_its_examination(
    store: Store, make_loop: MakeLoop, fill: MakeLoop, replies: ScriptedReplies, renderer: Renderer
) -> None:
    (turn,) = fill(store, 1, question="Where is the Louvre?")
    add_lesson(store, SHORT, [turn])
    loop = make_loop(step_limit=1, check=TeachingCheck(key=store.secret))
    settle(loop)
    assert replies.orders == []
    assert "waits for the examination" in loop.note
    assert waiting(store) == [(SHORT.text,)]
    record(store, SHORT.text, is_sound=True)
    assert waiting(store) == []
    settle(loop)
    while waiting(store):
        for texts in waiting(store):
            record(store, *texts, is_sound=True)
        settle(loop)
    assert SHORT.text in hints_in(replies, renderer)


def test_a_withdrawn_lesson_is_not_in_practice(
    store: Store, make_loop: MakeLoop, fill: MakeLoop, replies: ScriptedReplies, renderer: Renderer
) -> None:
    turns = fill(store, 1, question="Where is the Louvre?")
    add_lesson(store, SHORT, turns)
    add_lesson(store, KLINGON, turns)
    with store.write() as conn:
        withdrawals.withdraw(conn, "kk", KLINGON.text, COSTS)
    settle(make_loop(step_limit=1))
    assert hints_in(replies, renderer) == {SHORT.text}


def test_a_learned_lesson_that_costs_correctness_is_not_in_the_teachers_prompt(
    store: Store, make_loop: MakeLoop, fill: MakeLoop, replies: ScriptedReplies, renderer: Renderer
) -> None:
    """The lesson in the weights stands in no prompt of a person, but the teacher follows it, too."""
    turns = fill(store, 1, question="Where is the Louvre?")
    formal = replace(LONG, id="ff", text="Use a formal tone.", topic="tone/formal", weight=9.0)
    add_lesson(store, SHORT, turns)
    add_lesson(store, formal, turns)
    with store.write() as conn:
        lessons.mark_learned(conn, "ff", 0)
    record(store, SHORT.text, formal.text, is_sound=False)
    record(store, SHORT.text, is_sound=True)
    record(store, formal.text, is_sound=True)
    loop = make_loop(step_limit=1, check=TeachingCheck(key=store.secret))
    settle(loop)
    while waiting(store):
        for texts in waiting(store):
            record(store, *texts, is_sound=True)
        settle(loop)
    assert hints_in(replies, renderer) == {SHORT.text}


def test_a_hint_that_costs_correctness_is_not_used(
    store: Store, fill: MakeLoop, builder: SampleBuilder
) -> None:
    """The hint of one turn is a teacher's prompt as well, without any practice."""
    turns = fill(store, 1, score=-1, hints=(KLINGON.text,))
    with store.read() as conn:
        head, items = policies.head(conn), training_queue.load_judged_turns(conn, turns)
    checked = replace(builder, is_refused=RefusedTexts(store, IDENTITY).has_any)
    (before,) = checked.build_batch(items, head, [0]).samples
    record(store, KLINGON.text, is_sound=False)
    (after,) = checked.build_batch(items, head, [0]).samples
    assert (len(before.hinted_prompts), after.hinted_prompts) == (1, ())
