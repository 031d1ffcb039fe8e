"""Choose the lessons for a prompt. Their text is added to the last user message, where hints are.

What stands in a prompt for the first time is examined meanwhile (`lesson_examiner.py`). What is known to cost
correctness stands in no prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Literal

from sqlalchemy import Connection

from openclaw_rl.common.message_hash import message_text
from openclaw_rl.common.rules.lesson_topics import HintTopics, Wishes, is_contradicted, is_opposed, normalise_lesson
from openclaw_rl.render.hint import hinted_index
from openclaw_rl.serve.chat_request import ChatRequest
from openclaw_rl.serve.lessons.lesson_set import ExaminedText, LessonSetOfPrompt, is_due_again
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons.examinations import lesson_capacity
from openclaw_rl.store.lessons.fitting import MAX_PROMPT_CHARS, fitting_lessons
from openclaw_rl.store.lessons.lessons import Lesson, LessonState, lessons_for
from openclaw_rl.store.lessons.questions import question_hash
from openclaw_rl.store.lessons.scopes import PromptContext, asked_text, sessions_of_history
from openclaw_rl.store.lineage.policy_names import PolicyOwner, policy_name
from openclaw_rl.types import Message

WISH_PREFIX = "wish/"
"""Begins the id of what the newest message says, of which the judge makes a lesson only after the reply to it."""

LessonMode = Literal["until_learned", "always", "off"]
ChainReader = Callable[[], Sequence[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLessons:
    """Lessons for one prompt. `texts`: id -> text of those in it. `withdrawn`: ids of those that cost correctness."""

    texts: Mapping[str, str] = field(default_factory=dict)
    withdrawn: tuple[str, ...] = ()


NO_LESSONS = PromptLessons()


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
        identity: str,
        examine: Callable[[LessonSetOfPrompt], None] | None = None,
    ) -> None:
        """`per`: who has a policy of its own, and so lessons of its own. `topics`: of wishes and lessons.

        `identity`: of the base. `examine`: starts an examination; None: no lesson is examined.
        """
        self._store, self._mode, self.per, self._is_ephemeral = store, mode, per, is_ephemeral
        self._topics, self._identity, self._examine = topics, identity, examine

    def lookup(self, ask: ChatRequest, scope: str) -> LessonLookup:
        """Return the lookup for one request. `scope`: id of its API key."""
        return LessonLookup(self, ask, scope)

    async def pick_lessons(
        self, messages: Sequence[Message], context: PromptContext, chains: ChainReader
    ) -> PromptLessons:
        """Return the lessons for a prompt, oldest first.

        `context`: without the question; of the conversation, only the name that the client gives. `chains` returns the
        chained hashes of the messages, by which the conversation is found without a name.
        """
        found, to_examine = await asyncio.to_thread(self._read_lessons, messages, context, chains)
        if self._examine is not None:
            for lessons in to_examine:
                self._examine(lessons)
        return found

    def _read_lessons(
        self, messages: Sequence[Message], context: PromptContext, chains: ChainReader
    ) -> tuple[PromptLessons, list[LessonSetOfPrompt]]:
        question = question_hash(messages, self._is_ephemeral, key=self._store.secret, user=context.user)
        context = replace(
            context, question=question, asked=asked_text(messages, self._is_ephemeral, self._topics.without_scopes)
        )
        states = (LessonState.ACTIVE, LessonState.LEARNED, LessonState.WITHDRAWN)
        with self._store.read() as conn:
            known = sessions_of_history(conn, context, chains)
            lessons = lessons_for(conn, replace(context, sessions=(*context.sessions, *known)), states=states)
            capacity = lesson_capacity(conn, self._identity)
            wanted = [lesson for lesson in lessons if self._is_wanted(lesson)]
            in_force = frozenset(lesson.id for lesson in wanted)
            withdrawn = [lesson for lesson in lessons if lesson.state is LessonState.WITHDRAWN]
            wishes, said = self._read_wishes(messages), dict[str, str]()
            if wishes.topics or wishes.hints:
                topics = {lesson.id: self._topics.topic_of(lesson.text, lesson.topic) for lesson in lessons}
                wanted = [one for one in wanted if one.is_pinned or not is_contradicted(topics[one.id], wishes.topics)]
                said = _new_wishes(wishes, [(one.text, topics[one.id]) for one in (*wanted, *withdrawn)])
            fitting = fitting_lessons(wanted, capacity=capacity)
            if self._examine is None:
                return PromptLessons(texts={lesson.id: lesson.text for lesson in fitting} | said), []
            return self._leave_out(conn, context.policy, fitting, said, withdrawn, in_force, capacity)

    def _leave_out(
        self,
        conn: Connection,
        policy: str,
        fitting: Sequence[Lesson],
        said: Mapping[str, str],
        withdrawn: Sequence[Lesson],
        in_force: AbstractSet[str],
        capacity: int,
    ) -> tuple[PromptLessons, list[LessonSetOfPrompt]]:
        """Return the lessons without those that are known to cost correctness, and the sets that are to be examined.

        `said`: id -> text of what the newest message says. `in_force`: ids of all lessons of the person that are, also
        of those that the newest message contradicts.
        """
        now = max((lesson.reinforced_at for lesson in (*fitting, *withdrawn)), default=0.0)
        examined = [lesson for lesson in fitting if lesson.is_examined and lesson.state is not LessonState.WITHDRAWN]
        texts = [ExaminedText.of_lesson(lesson, now) for lesson in examined]
        texts += [ExaminedText(id=id_, text=text) for id_, text in said.items()]
        lessons = LessonSetOfPrompt(policy=policy, texts=tuple(texts))
        choice = lessons.choose(conn, self._identity, self._store.secret)
        chosen = {texts[place].id for place in choice.chosen}
        to_examine = [lessons] if choice.missing is not None or choice.left_out else []
        due = [one for one in withdrawn if one.is_examined and is_due_again(one, in_force)]
        if due and len(chosen) < capacity:
            again = [ExaminedText.of_lesson(lesson, now) for lesson in due[: capacity - len(chosen)]]
            in_order = sorted([*(text for text in texts if text.id in chosen), *again], key=_place_in_prompt)
            to_examine.append(LessonSetOfPrompt(policy=policy, texts=tuple(in_order)))
        unexamined = {lesson.id for lesson in fitting if lesson not in examined}
        in_prompt = {one.id: one.text for one in fitting if one.is_pinned or one.id in chosen | unexamined}
        in_prompt |= {id_: text for id_, text in said.items() if id_ in chosen}
        left_out = [text.id for text in texts if text.lesson is not None and text.id not in chosen]
        left_out += [lesson.id for lesson in withdrawn]
        return PromptLessons(texts=in_prompt, withdrawn=tuple(left_out)), to_examine

    def _read_wishes(self, messages: Sequence[Message]) -> Wishes:
        """Return what the newest words of the person ask for."""
        newest = hinted_index(messages, self._is_ephemeral)
        if newest is None:
            return Wishes()
        replies = (message for message in reversed(messages[:newest]) if message.get("role") == "assistant")
        reply = next(replies, None)
        return self._topics.read_wishes(messages[newest], None if reply is None else message_text(reply))

    def _is_wanted(self, lesson: Lesson) -> bool:
        if lesson.is_pinned:
            return True
        is_in_weights = lesson.state is LessonState.LEARNED
        return lesson.state is LessonState.ACTIVE or (is_in_weights and self._mode == "always")


class LessonLookup:
    """The lessons for the prompt of one request. `found`: once they were looked up."""

    def __init__(self, picker: LessonPicker, ask: ChatRequest, scope: str) -> None:
        self._picker, self._ask, self._scope = picker, ask, scope
        self.found = NO_LESSONS

    async def find_lessons(self, origin: tuple[str, str] | None, chains: ChainReader) -> Mapping[str, str]:
        """Return id -> text of the lessons. `origin`: (session, agent) that the first user message states.

        `chains`: as for `LessonPicker.pick_lessons`.
        """
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
        return self.found.texts


def _place_in_prompt(text: ExaminedText) -> float:
    """Return the place of a text among others: lessons stand in the order in which they were made, wishes last."""
    return text.lesson.made_at if text.lesson is not None else float("inf")


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
