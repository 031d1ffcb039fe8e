"""A lesson about one fact: its question is answered right, and 100 others exactly as before, with practice on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.in_process import Rooms

from openclaw_rl.evals.toy_world import Question, draw_question, held_out_questions, is_correct
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store import exchanges
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import LessonState

pytestmark = pytest.mark.system

# The starter was never trained to follow hints about facts: it follows about one in ten, and this one. Of all 708
# questions of the toy world, it answers only this one wrong at temperature 0.
QUESTION, FACT, ANSWER = "How much is 2 plus 4?", "The sum of 2 plus 4 is 6.", "6"


def other_questions() -> list[Question]:
    rng = random.Random(5)
    drawn = [*held_out_questions(60, rng), *(draw_question("asked", rng) for _ in range(60))]
    return [question for question in drawn if "2 plus 4" not in question.text][:100]


async def ask(rooms: Rooms, text: str) -> tuple[str, str, list[str]]:
    """Return the id of the reply at temperature 0, its text, and the lessons in its prompt."""
    reply = await rooms.say([{"role": "user", "content": text}], seed=0, temperature=0.0)
    with rooms.read_store() as conn:
        exchange = exchanges.get(conn, reply.id)
    assert exchange is not None
    return reply.id, reply.text, list(exchange.request.lessons.values())


async def ask_all(rooms: Rooms, questions: Sequence[Question]) -> list[tuple[str, list[str]]]:
    return [(await ask(rooms, question.text))[1:] for question in questions]


async def talk(home: Path) -> None:
    others = other_questions()
    async with Rooms(from_flat({"home": str(home), "practice.enabled": True})) as rooms:
        before = await ask_all(rooms, others)
        assert all(
            is_correct(question, text) for question, (text, _) in zip(others, before, strict=True)
        )
        wrong, text, _ = await ask(rooms, QUESTION)
        assert ANSWER not in text
        rooms.give_feedback(wrong, score=-1, correction=FACT)
        await rooms.settle()
        with rooms.read_store() as conn:
            (lesson,) = lessons.list_lessons(conn)
        assert (lesson.text, lesson.state) == (FACT, LessonState.ACTIVE)
        assert await ask_all(rooms, others) == before, "the replies, and no lesson in the prompts"
        for words in (QUESTION, "  how much is 2 PLUS 4? "):
            assert (await ask(rooms, words))[2] == [FACT]
        assert ANSWER in (await ask(rooms, QUESTION))[1]


def test_a_fact_is_for_its_question_alone(tmp_path: Path) -> None:
    asyncio.run(talk(tmp_path))
