"""Choose the lessons for a prompt. Their text is added to the last user message, where hints are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from openclaw_rl.common.message_hash import message_text
from openclaw_rl.common.rules.lesson_topics import HintTopics, Wishes, is_contradicted, is_opposed, normalise_lesson
from openclaw_rl.render.hint import hinted_index
from openclaw_rl.serve.chat_request import ChatRequest
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons.lessons import Lesson, LessonScope, LessonState, PromptContext, lessons_for
from openclaw_rl.store.lessons.questions import question_hash
from openclaw_rl.store.lineage.policy_names import PolicyOwner, policy_name
from openclaw_rl.types import Message

MAX_LESSONS = 8
"""Lessons in one prompt: pinned ones first, then those about its question, then the heaviest."""
MAX_PROMPT_CHARS = 2000
"""Characters of all lessons in one prompt."""
WISH_PREFIX = "wish/"
"""Begins the id of what the newest message says, of which the judge makes a lesson only after the reply to it."""

LessonMode = Literal["until_learned", "always", "off"]


class LessonPicker:
    """Reads the lessons for each prompt from the store, so that a new one is in the next prompt."""

    def __init__(
        self,
        store: Store,
        mode: LessonMode,
        per: PolicyOwner,
        *,
        topics: HintTopics,
        is_ephemeral: Callable[[Message], bool],
    ) -> None:
        """`per`: who has a policy of its own, and so lessons of its own. `topics`: of wishes and lessons."""
        self._store, self._mode, self.per, self._is_ephemeral = store, mode, per, is_ephemeral
        self._topics = topics

    def lookup(self, ask: ChatRequest, scope: str) -> LessonLookup:
        """Return the lookup for one request. `scope`: id of its API key."""
        return LessonLookup(self, ask, scope)

    async def pick_lessons(self, messages: Sequence[Message], context: PromptContext) -> Mapping[str, str]:
        """Return id -> text of the lessons for a prompt, oldest first. `context`: without the question."""
        return await asyncio.to_thread(self._read_lessons, messages, context)

    def _read_lessons(self, messages: Sequence[Message], context: PromptContext) -> Mapping[str, str]:
        question = question_hash(messages, self._is_ephemeral, key=self._store.secret, user=context.user)
        states = (LessonState.ACTIVE, LessonState.LEARNED)
        with self._store.read() as conn:
            found = lessons_for(conn, replace(context, question=question), states=states)
        wanted = [lesson for lesson in found if self._is_wanted(lesson)]
        wishes, said = self._read_wishes(messages), dict[str, str]()
        if wishes.topics or wishes.hints:
            topics = {lesson.id: self._topics.topic_of(lesson.text, lesson.topic) for lesson in wanted}
            wanted = [one for one in wanted if one.is_pinned or not is_contradicted(topics[one.id], wishes.topics)]
            said = _new_wishes(wishes, [(one.text, topics[one.id]) for one in wanted])
        chosen = set(_first_lessons(wanted, time.time()))
        return {lesson.id: lesson.text for lesson in wanted if lesson.id in chosen} | said

    def _read_wishes(self, messages: Sequence[Message]) -> Wishes:
        """Return what the newest words of the person ask for."""
        newest = hinted_index(messages, self._is_ephemeral)
        if newest is None:
            return Wishes()
        replies = (message for message in reversed(messages[:newest]) if message.get("role") == "assistant")
        reply = next(replies, None)
        return self._topics.read_wishes(messages[newest], None if reply is None else message_text(reply))

    def _is_wanted(self, lesson: Lesson) -> bool:
        return self._mode == "always" or lesson.is_pinned or lesson.state is LessonState.ACTIVE


class LessonLookup:
    """The lessons for the prompt of one request. `found`: id -> text, once they were looked up."""

    def __init__(self, picker: LessonPicker, ask: ChatRequest, scope: str) -> None:
        self._picker, self._ask, self._scope = picker, ask, scope
        self.found: Mapping[str, str] = {}

    async def find_lessons(self, origin: tuple[str, str] | None) -> Mapping[str, str]:
        """Return the lessons. `origin`: (session, agent) that the first user message states."""
        ask = self._ask
        agent = ask.agent or (origin or ("", ""))[1]
        context = PromptContext(
            policy=policy_name(self._picker.per, agent=agent, user=ask.user, key=self._scope),
            key=self._scope,
            agent=agent,
            user=ask.user,
        )
        self.found = await self._picker.pick_lessons(ask.messages, context)
        return self.found


def _new_wishes(wishes: Wishes, lessons: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return id -> text of what was just said, and is not among the lessons, given as (text, topic)."""
    topics, texts = {topic for _, topic in lessons}, {normalise_lesson(text) for text, _ in lessons}
    return {
        f"{WISH_PREFIX}{topic}": text
        for topic, text in wishes.hints.items()
        if topic not in topics
        and normalise_lesson(text) not in texts
        and not is_opposed(topic, topics)
        and len(text) <= MAX_PROMPT_CHARS
    }


def _first_lessons(wanted: Sequence[Lesson], now: float) -> list[str]:
    """Return the ids of the lessons that fit, in the order of `MAX_LESSONS`."""
    space, chosen = MAX_PROMPT_CHARS, list[str]()

    def order(lesson: Lesson) -> tuple[bool, bool, float]:
        return lesson.is_pinned, lesson.scope_kind is LessonScope.QUESTION, lesson.weight_at(now)

    for lesson in sorted(wanted, key=order, reverse=True)[:MAX_LESSONS]:
        if len(lesson.text) <= space:
            chosen.append(lesson.id)
            space -= len(lesson.text)
    return chosen
