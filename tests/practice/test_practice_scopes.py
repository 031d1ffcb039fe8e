"""Practice and the scopes of lessons: what a wish is limited to, and how many lessons the teacher's prompt has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.practice.conftest import SHORT, MakeLoop, ScriptedReplies, add_lesson, settle
from tests.practice.test_practice import uses_of

from openclaw_rl.render.hint import lessons_hint, with_hint
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.examinations import ASSUMED_CAPACITY
from openclaw_rl.store.lessons.lessons import Lesson
from openclaw_rl.store.lessons.scopes import LessonScope, subject_scope, user_scope

Fill = Callable[..., list[str]]
FORMAL = replace(SHORT, id="formal", text="Be formal.", topic="tone/formal")


def orders_with(
    replies: ScriptedReplies, renderer: Renderer, question: str, *in_prompt: Lesson
) -> list[Any]:
    """The orders with this question and exactly these lessons."""
    messages = [{"role": "user", "content": question}]
    hinted = with_hint(
        messages,
        lessons_hint([lesson.text for lesson in in_prompt]),
        lambda message: False,
        renderer.hint_format,
    )
    ids = renderer.render(hinted).prompt_ids.tolist()
    return [order for order in replies.orders if order.prompt_ids == ids]


def test_a_wish_for_one_conversation_is_not_practised(
    store: Store, make_loop: MakeLoop, fill: Fill, replies: ScriptedReplies, renderer: Renderer
) -> None:
    """The weights know no conversations. On its own prompts, the teacher has the other lessons alone."""
    (turn,) = fill(store, 1, question="Where is the Louvre?")
    with store.read() as conn:
        session = turns.get(conn, turn)
    assert session is not None
    here = replace(FORMAL, scope_kind=LessonScope.SESSION, scope_value=session.session)
    add_lesson(store, here, [turn])
    settle(make_loop())
    assert replies.orders == []
    add_lesson(store, SHORT, [turn])
    settle(make_loop(step_limit=1))
    assert orders_with(replies, renderer, "Where is the Louvre?", SHORT)
    assert not orders_with(replies, renderer, "Where is the Louvre?", here, SHORT)


def test_a_wish_about_a_subject_is_in_the_teachers_prompt_where_it_is_named(
    store: Store, make_loop: MakeLoop, fill: Fill, replies: ScriptedReplies, renderer: Renderer
) -> None:
    (turn,) = fill(store, 1, question="Where is the Louvre?")
    fill(store, 1, question="What is money?")
    about = replace(
        FORMAL, scope_kind=LessonScope.SUBJECT, scope_value=subject_scope("", "", "Money")
    )
    add_lesson(store, about, [turn])
    settle(make_loop())
    assert replies.orders == [], "it is not practised by itself"
    add_lesson(store, SHORT, [turn])
    settle(make_loop(step_limit=1))
    assert orders_with(replies, renderer, "Where is the Louvre?", SHORT)
    assert orders_with(replies, renderer, "What is money?", about, SHORT)


def test_the_teachers_prompt_has_at_most_the_capacity(
    store: Store, make_loop: MakeLoop, fill: Fill, replies: ScriptedReplies, renderer: Renderer
) -> None:
    (turn,) = fill(store, 1, question="Where is the Louvre?")
    many = [
        replace(SHORT, id=f"l{n:02d}", text=f"Rule {n}.", topic="", weight=1.0 + n)
        for n in range(12)
    ]
    for lesson in many:
        add_lesson(store, lesson, [turn])
    settle(make_loop(step_limit=1))
    assert orders_with(replies, renderer, "Where is the Louvre?", *many[-ASSUMED_CAPACITY:])


def test_a_lesson_is_practised_beside_heavier_learned_ones(
    store: Store, make_loop: MakeLoop, fill: Fill, replies: ScriptedReplies, renderer: Renderer
) -> None:
    (turn,) = fill(store, 1, question="Where is the Louvre?")
    many = [
        replace(SHORT, id=f"l{n}", text=f"Rule {n}.", topic="", weight=4.0 - 0.1 * n)
        for n in range(8)
    ]
    for lesson in many:
        add_lesson(store, lesson, [turn])
        with store.write() as conn:
            lessons.mark_learned(conn, lesson.id, 0)
    add_lesson(store, replace(SHORT, weight=1.0), [turn])
    settle(make_loop(step_limit=1))
    assert orders_with(
        replies, renderer, "Where is the Louvre?", *many[: ASSUMED_CAPACITY - 1], SHORT
    )


def test_an_unrelated_lesson_does_not_end_the_round(
    store: Store, make_loop: MakeLoop, fill: Fill, replies: ScriptedReplies
) -> None:
    """In a home of many people, somebody says something in each round."""
    (turn,) = fill(store, 1, question="Where is the Louvre?")
    add_lesson(store, SHORT, [turn])
    loop = make_loop(step_limit=1)
    assert loop.run_once()
    of_bob = replace(
        FORMAL, id="bob", scope_kind=LessonScope.USER, scope_value=user_scope("", "bob")
    )
    here = replace(FORMAL, id="here", scope_kind=LessonScope.SESSION, scope_value="s1")
    fact = replace(
        FORMAL,
        id="fact",
        text="It is Canberra.",
        scope_kind=LessonScope.QUESTION,
        scope_value="other",
    )
    for lesson in (of_bob, here, fact):
        add_lesson(store, lesson, [turn])
    assert loop.run_once()
    assert len(replies.orders) == 4
    assert len(uses_of(store, 1)) == 4
