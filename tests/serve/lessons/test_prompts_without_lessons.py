"""Most prompts get no lesson. They are recognised on the event loop, without a thread and without the rules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.common.rules.lesson_topics import HintTopics, load_topics
from openclaw_rl.serve.lessons.lesson_picker import MAX_SHORT_CHARS, LessonPicker
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lessons.scopes import PromptContext
from openclaw_rl.types import Message

HERE = PromptContext(key="key", agent="agent")
SHORT = Lesson(
    id="aa",
    key="key",
    text="Keep answers short.",
    topic="length/short",
    scope_value="agent",
    made_at=1.0,
    reinforced_at=1.0,
)
ANSWERED: list[Message] = [
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "The capital of France is Paris."},
]
LANGUAGES = Path(__file__).parents[2] / "judge" / "languages"


class CountingExecutor(ThreadPoolExecutor):
    """Counts the calls that are handed to a thread."""

    calls = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls += 1
        return super().submit(fn, *args, **kwargs)


@cache
def topics() -> HintTopics:
    return load_topics(None)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


def pick(store: Store, messages: list[Message]) -> tuple[list[str], int]:
    """Return the texts of the lessons for a prompt, and how many calls were handed to a thread."""
    picker = LessonPicker(
        store,
        "until_learned",
        "none",
        load_topics=topics,
        is_ephemeral=EphemeralMatcher(()),
        identity="base",
    )

    async def work() -> tuple[list[str], int]:
        await picker.read_topics()
        executor = CountingExecutor(1)
        asyncio.get_running_loop().set_default_executor(executor)
        picked = await picker.pick_lessons(messages, HERE, lambda: [])
        return list(picked.texts.values()), executor.calls

    return asyncio.run(work())


def asks(text: str) -> list[Message]:
    return [*ANSWERED, {"role": "user", "content": text}]


def test_a_prompt_without_lessons_and_wishes_needs_no_thread(store: Store) -> None:
    assert pick(store, ANSWERED[:1]) == ([], 0)
    assert pick(store, asks("And what is the capital of Italy?")) == ([], 0)


def test_the_next_prompt_has_a_lesson_that_another_process_has_made(store: Store) -> None:
    assert pick(store, ANSWERED[:1]) == ([], 0)
    with Store.open(store.path) as other, other.write() as conn:
        lessons.add_lesson(conn, SHORT)
    assert pick(store, ANSWERED[:1]) == ([SHORT.text], 1)


def test_lessons_of_others_do_not_matter(store: Store) -> None:
    with store.write() as conn:
        lessons.add_lesson(conn, replace(SHORT, key="another key"))
        lessons.add_lesson(conn, replace(SHORT, id="bb", policy="another policy"))
    assert pick(store, ANSWERED[:1]) == ([], 0)


def test_lessons_in_any_state_are_read(store: Store) -> None:
    with store.write() as conn:
        lessons.add_lesson(conn, replace(SHORT, state=LessonState.SUPERSEDED))
    assert pick(store, ANSWERED[:1]) == ([], 1)


def test_a_wish_about_the_reply_before_it_is_in_the_prompt(store: Store) -> None:
    assert pick(store, asks("Be concise."))[0]
    assert pick(store, [{"role": "user", "content": "Be concise."}]) == ([], 0)


def test_a_long_message_is_searched_in_a_thread(store: Store) -> None:
    assert pick(store, asks("And the rivers? " * MAX_SHORT_CHARS)) == ([], 1)


def test_no_wish_of_the_labelled_reactions_is_missed() -> None:
    reply = "Here you are. Do you want the first one?"
    for file in sorted(LANGUAGES.glob("*.yaml")):
        for text in _texts(yaml.safe_load(file.read_text(encoding="utf-8"))):
            message = {"role": "user", "content": text}
            if topics().read_wishes(message, reply).hints:
                assert topics().may_have_hints(message, reply), text


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (key for key in value if isinstance(key, str))
        yield from (text for item in value.values() for text in _texts(item))
    elif isinstance(value, list):
        yield from (text for item in value for text in _texts(item))
