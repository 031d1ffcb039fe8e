"""Choose the lessons for a prompt. Their text is added to the last user message, where hints are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from openclaw_rl.common.message_hash import message_text
from openclaw_rl.common.rules.lesson_topics import HintTopics, Wishes, is_contradicted, is_opposed, normalise_lesson
from openclaw_rl.render.hint import hinted_index
from openclaw_rl.serve.chat_request import ChatRequest
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons.lessons import MAX_PROMPT_CHARS, Lesson, LessonState, fitting_lessons, lessons_for
from openclaw_rl.store.lessons.questions import question_hash
from openclaw_rl.store.lessons.scopes import PromptContext, asked_text, sessions_of_history
from openclaw_rl.store.lineage.policy_names import PolicyOwner, policy_name
from openclaw_rl.types import Message

WISH_PREFIX = "wish/"
"""Begins the id of what the newest message says, of which the judge makes a lesson only after the reply to it."""

LessonMode = Literal["until_learned", "always", "off"]
ChainReader = Callable[[], Sequence[bytes]]


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

    async def pick_lessons(
        self, messages: Sequence[Message], context: PromptContext, chains: ChainReader
    ) -> Mapping[str, str]:
        """Return id -> text of the lessons for a prompt, oldest first.

        `context`: without the question; of the conversation, only the name that the client gives. `chains` returns the
        chained hashes of the messages, by which the conversation is found without a name.
        """
        return await asyncio.to_thread(self._read_lessons, messages, context, chains)

    def _read_lessons(
        self, messages: Sequence[Message], context: PromptContext, chains: ChainReader
    ) -> Mapping[str, str]:
        question = question_hash(messages, self._is_ephemeral, key=self._store.secret, user=context.user)
        context = replace(
            context, question=question, asked=asked_text(messages, self._is_ephemeral, self._topics.without_scopes)
        )
        states = (LessonState.ACTIVE, LessonState.LEARNED)
        with self._store.read() as conn:
            known = sessions_of_history(conn, context, chains)
            found = lessons_for(conn, replace(context, sessions=(*context.sessions, *known)), states=states)
        wanted = [lesson for lesson in found if self._is_wanted(lesson)]
        wishes, said = self._read_wishes(messages), dict[str, str]()
        if wishes.topics or wishes.hints:
            topics = {lesson.id: self._topics.topic_of(lesson.text, lesson.topic) for lesson in wanted}
            wanted = [one for one in wanted if one.is_pinned or not is_contradicted(topics[one.id], wishes.topics)]
            said = _new_wishes(wishes, [(one.text, topics[one.id]) for one in wanted])
        return {lesson.id: lesson.text for lesson in fitting_lessons(wanted)} | said

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

    async def find_lessons(self, origin: tuple[str, str] | None, chains: ChainReader) -> Mapping[str, str]:
        """Return the lessons. `origin`: (session, agent) that the first user message states. `chains`: see above."""
        ask = self._ask
        stated_session, stated_agent = origin or ("", "")
        agent, session = ask.agent or stated_agent, ask.session or stated_session
        context = PromptContext(
            policy=policy_name(self._picker.per, agent=agent, user=ask.user, key=self._scope),
            key=self._scope,
            agent=agent,
            user=ask.user,
            sessions=(session,) if session else (),
        )
        self.found = await self._picker.pick_lessons(ask.messages, context, chains)
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
