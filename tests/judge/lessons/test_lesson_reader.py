"""With the llm judge, the same model says what a lesson is for, and which ones it repeats or contradicts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from sqlalchemy import update
from tests.judge.endpoint import Answer, completion, serving
from tests.judge.test_worker import until, working
from tests.judge.world import World

from openclaw_rl.settings.load import from_flat
from openclaw_rl.store import schema
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lessons.scopes import LessonScope, PromptContext

GENERAL = {"lesson": "Be brief.", "scope": "general", "same": None, "contradicts": []}


def as_lesson(values: Any) -> str:
    return json.dumps(values) if isinstance(values, dict) else str(values)


def judging(hint: str | None, lesson: Callable[[str], Any], seen: list[dict[str, Any]]) -> Answer:
    """Votes with this hint; `lesson`: from the question to the answer about its lesson."""

    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        body = await request.json()
        question = body["messages"][-1]["content"]
        if "Write the lesson" not in question:
            return completion(json.dumps({"reason": "r", "score": "-1", "hint": hint}))
        seen.append(body)
        return completion(as_lesson(lesson(question)))

    return answer


def learn(
    world: World,
    said: list[str],
    hint: str | None,
    lesson: Callable[[str], Any],
    *,
    correction: str | None = None,
) -> tuple[list[Lesson], list[dict[str, Any]]]:
    """Let the worker judge a turn after each message; return the lessons, and the questions about them."""
    seen: list[dict[str, Any]] = []

    async def go() -> None:
        async with serving(judging(hint, lesson, seen)) as endpoint:
            url = {
                "judge.kind": "llm",
                "judge.base_url": f"http://127.0.0.1:{endpoint.port}/v1",
                "judge.model": "m",
            }
            flat = {
                "home": str(world.config.home_dir),
                "judge.poll": 0.01,
                "judge.num_judges": 1,
                "judge.retries": 0,
            }
            world.config = from_flat(flat | url)
            async with working(world):
                for n, words in enumerate(said):
                    world.close(f"t{n}", words)
                    if correction is not None:
                        world.give(f"t{n}", score=-1, correction=correction)
                    await until(lambda n=n: world.judged() == n + 1)  # type: ignore[misc]

    asyncio.run(go())
    with world.store.read() as conn:
        return lessons.list_lessons(conn), seen


def test_rephrased_wishes_are_one_lesson_and_contradictions_supersede(
    world: World,
) -> None:
    def lesson(question: str) -> dict[str, Any]:
        if "third" in question:
            return GENERAL | {"lesson": "Explain at length.", "contradicts": [1, 7]}
        return (
            GENERAL | {"lesson": "Keep it short.", "same": 1} if "LESSON 1" in question else GENERAL
        )

    found, seen = learn(world, ["first", "second", "third"], "Be brief.", lesson)
    assert [(one.text, one.state) for one in found] == [
        ("Be brief.", LessonState.SUPERSEDED),
        ("Explain at length.", LessonState.ACTIVE),
    ]
    assert "LESSON 1>>\nBe brief." in seen[1]["messages"][-1]["content"]
    assert seen[0]["response_format"]["json_schema"]["name"] == "lesson"


def test_a_fact_is_for_its_question_whatever_the_model_says(world: World) -> None:
    (found,), _ = learn(
        world, ["No, it is 391."], "Say 391.", lambda question: GENERAL | {"lesson": "Say 391."}
    )
    assert (found.text, found.scope_kind) == ("Say 391.", LessonScope.QUESTION)


@pytest.mark.parametrize(
    ("answer", "scope"),
    [
        ({"scope": "conversation"}, (LessonScope.SESSION, "t0")),
        (
            {"scope": "subject", "subject": "Code, python"},
            (LessonScope.SUBJECT, '["", "", "code, python"]'),
        ),
    ],
)
def test_a_limited_wish_has_its_scope(
    world: World, answer: dict[str, Any], scope: tuple[LessonScope, str]
) -> None:
    (found,), _ = learn(
        world, ["Less of it in Python code."], "Be brief.", lambda question: GENERAL | answer
    )
    assert (found.scope_kind, found.scope_value, found.topic) == (*scope, "length/short")


def test_a_wish_for_its_conversation_contradicts_one_for_all_prompts(world: World) -> None:
    """Neither has a topic: that they contradict each other is known from the model alone."""

    def lesson(question: str) -> dict[str, Any]:
        if "second" in question:
            return GENERAL | {
                "lesson": "Answer in verse.",
                "scope": "conversation",
                "contradicts": [1],
            }
        return GENERAL | {"lesson": "Answer in prose."}

    found, _ = learn(world, ["first", "second"], "Be brief.", lesson)
    assert [(one.text, one.scope_value) for one in found] == [
        ("Answer in prose.", ""),
        ("Answer in verse.", "t1"),
    ]
    with world.store.read() as conn:
        (there,) = lessons.lessons_for(conn, PromptContext(key="s", sessions=("t1",)))
        (elsewhere,) = lessons.lessons_for(conn, PromptContext(key="s", sessions=("t0",)))
    assert (there.text, elsewhere.text) == ("Answer in verse.", "Answer in prose.")


def test_a_wish_for_its_conversation_contradicts_an_earlier_one(world: World) -> None:
    """The model is asked about those of the conversation, too."""

    def lesson(question: str) -> dict[str, Any]:
        if "verse" not in question:
            return GENERAL | {"lesson": "Answer in verse.", "scope": "conversation"}
        return GENERAL | {"lesson": "Answer in prose.", "scope": "conversation", "contradicts": [1]}

    for n in range(2):
        world.served(f"t{n}")
    with world.store.write() as conn:
        conn.execute(update(schema.turns).values(session="s1"))
    learn(world, ["first", "second"], "Be brief.", lesson)
    with world.store.read() as conn:
        found = lessons.lessons_for(conn, PromptContext(key="s", sessions=("s1",)))
    assert [one.text for one in found] == ["Answer in prose."]


@pytest.mark.parametrize("subject", [None, "", "!!", 3])
def test_a_limit_without_a_subject_is_the_question_itself(world: World, subject: Any) -> None:
    answer = GENERAL | {"scope": "subject", "subject": subject}
    (found,), _ = learn(world, ["first"], "Be brief.", lambda question: answer)
    assert found.scope_kind is LessonScope.QUESTION


def test_a_correction_is_read_by_the_model(world: World) -> None:
    said = ["hm"]
    (found,), _ = learn(
        world, said, None, lambda question: GENERAL, correction="I would rather have it brief"
    )
    assert (found.text, found.scope_kind) == ("Be brief.", LessonScope.AGENT)


@pytest.mark.parametrize(
    "broken", ["no JSON", {"score": 1}, {"lesson": "<|im_end|>", "scope": "general"}]
)
def test_without_a_usable_answer_the_hint_itself_is_the_lesson(world: World, broken: Any) -> None:
    (found,), seen = learn(world, ["first"], "Be brief.", lambda question: broken)
    assert (found.text, found.scope_kind, len(seen)) == ("Be brief.", LessonScope.AGENT, 1)


def test_a_verdict_without_hints_asks_no_model(world: World) -> None:
    assert learn(world, ["first"], None, lambda question: GENERAL) == ([], [])


def test_the_rules_make_lessons_in_the_worker(world: World) -> None:
    async def go() -> None:
        async with working(world):
            world.close("a", "Shorter, please.")
            await until(lambda: world.judged() == 1)

    asyncio.run(go())
    with world.store.read() as conn:
        (found,) = lessons.list_lessons(conn)
    assert (found.text, found.topic, found.key) == ("Keep answers short.", "length/short", "s")
    assert replace(found, id="", made_at=0, reinforced_at=0).state is LessonState.ACTIVE


def test_a_boolean_is_no_lesson_number(world: World) -> None:
    def lesson(question: str) -> dict[str, Any]:
        return GENERAL | {"lesson": "Use a formal tone.", "same": True, "contradicts": [True]}

    with world.store.write() as conn:
        lessons.add_lesson(
            conn, Lesson(id="aa", key="s", text="Be brief.", made_at=1.0, reinforced_at=1.0)
        )
    found, _ = learn(world, ["first"], "Use a formal tone.", lesson)
    assert [(one.text, one.state) for one in found] == [
        ("Be brief.", LessonState.ACTIVE),
        ("Use a formal tone.", LessonState.ACTIVE),
    ]
