"""Choose the lessons for a prompt. Their text is added to the last user message, where hints are.

A set of lessons that is in a prompt for the first time is examined meanwhile (`lesson_examiner.py`). A set that is
known to cost correctness is in no prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Literal

from sqlalchemy import Connection

from openclaw_rl.common.message_hash import message_text
from openclaw_rl.common.rules.lesson_topics import (
    HintTopics,
    Wishes,
    is_contradicted,
    is_opposed,
    normalise_lesson,
)
from openclaw_rl.render.hint import hinted_index
from openclaw_rl.serve.chat_request import ChatRequest
from openclaw_rl.serve.lessons.lesson_set import ExaminedText, LessonSetOfPrompt, is_due_again
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons.examinations import lesson_capacity
from openclaw_rl.store.lessons.fitting import MAX_PROMPT_CHARS, fitting_lessons
from openclaw_rl.store.lessons.lessons import Lesson, LessonState, has_lessons, lessons_for
from openclaw_rl.store.lessons.questions import question_hash
from openclaw_rl.store.lessons.scopes import PromptContext, asked_text, sessions_of_history
from openclaw_rl.store.lineage.policy_names import PolicyOwner, policy_name
from openclaw_rl.types import Message

WISH_PREFIX = "wish/"
"""Begins the id of what the newest message says, of which the judge makes a lesson only after the reply to it."""

MAX_SHORT_CHARS = 1000
"""A longer message is searched for wishes in a thread, so that streams do not stall."""

LessonMode = Literal["until_learned", "always", "off"]
ChainReader = Callable[[], Sequence[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLessons:
    """Lessons for one prompt. `texts`: id -> text of those in it. `withdrawn`: ids of those that cost correctness."""

    texts: Mapping[str, str] = field(default_factory=dict)
    withdrawn: tuple[str, ...] = ()


NO_LESSONS = PromptLessons()


@dataclass(frozen=True, slots=True, kw_only=True)
class _PromptCandidates:
    """The lessons and wishes that may be in one prompt. `policy`: name of the one that answers.

    `fitting`: lessons for which the prompt has space. `wishes`: id -> text of the wishes in the newest message.
    `in_force`: ids of all lessons of the person that are in force, also of those that the newest message contradicts.
    `capacity`: how many lessons the base carries.
    """

    policy: str
    fitting: Sequence[Lesson]
    wishes: Mapping[str, str]
    withdrawn: Sequence[Lesson]
    in_force: AbstractSet[str]
    capacity: int

    @property
    def newest_at(self) -> float:
        """Time of the newest evidence for a lesson, at which all are weighed."""
        return max(
            (lesson.reinforced_at for lesson in (*self.fitting, *self.withdrawn)), default=0.0
        )

    def examined_texts(self) -> list[ExaminedText]:
        """Return the texts that are examined together, in the order of the prompt."""
        newest_at = self.newest_at
        texts = []
        for lesson in self.fitting:
            if lesson.is_examined and lesson.state is not LessonState.WITHDRAWN:
                texts.append(ExaminedText.of_lesson(lesson, newest_at))
        return texts + [ExaminedText(id=id_, text=text) for id_, text in self.wishes.items()]

    def set_with_due(self, chosen: Sequence[ExaminedText]) -> LessonSetOfPrompt | None:
        """Return the chosen texts with the withdrawn lessons to examine again; None without any, or without space."""
        examined = [lesson for lesson in self.withdrawn if lesson.is_examined]
        due = [lesson for lesson in examined if is_due_again(lesson, self.in_force)]
        space = max(0, self.capacity - len(chosen))
        newest_at = self.newest_at
        due_texts = [ExaminedText.of_lesson(lesson, newest_at) for lesson in due[:space]]
        if not due_texts:
            return None
        in_order = sorted([*chosen, *due_texts], key=_place_in_prompt)
        return LessonSetOfPrompt(policy=self.policy, texts=tuple(in_order))

    def lessons_of_choice(
        self, texts: Sequence[ExaminedText], chosen: AbstractSet[str]
    ) -> PromptLessons:
        """Return the lessons of the prompt. `texts`: the examined ones; `chosen`: ids of those that may stay."""
        refused = {text.id: text for text in texts if text.id not in chosen}
        in_prompt = self._texts_without(refused)
        in_prompt |= {id_: text for id_, text in self.wishes.items() if id_ in chosen}
        withdrawn = [id_ for id_, text in refused.items() if text.lesson is not None]
        withdrawn += [lesson.id for lesson in self.withdrawn]
        return PromptLessons(texts=in_prompt, withdrawn=tuple(withdrawn))

    def _texts_without(self, refused: Mapping[str, ExaminedText]) -> dict[str, str]:
        """Return the texts of the lessons by id, without the refused ones that are not pinned."""
        return {
            lesson.id: lesson.text
            for lesson in self.fitting
            if lesson.is_pinned or lesson.id not in refused
        }


class LessonPicker:
    """Reads the lessons for each prompt from the store, so that a new one is in the next prompt."""

    def __init__(
        self,
        store: Store,
        mode: LessonMode,
        per: PolicyOwner,
        *,
        load_topics: Callable[[], HintTopics],
        is_ephemeral: Callable[[Message], bool],
        identity: str,
        examine: Callable[[LessonSetOfPrompt], None] | None = None,
    ) -> None:
        """`per`: who has a policy of its own, and so lessons of its own.

        `load_topics`: loads those of wishes and lessons. It is called in a thread, as it takes seconds.
        `identity`: of the base. `examine`: starts an examination; None: no lesson is examined.
        """
        self._store = store
        self._mode = mode
        self.per = per
        self._load_topics = load_topics
        self._topics = HintTopics(())
        self._topics_lock = asyncio.Lock()
        self._has_topics = False
        self._is_ephemeral = is_ephemeral
        self._identity = identity
        self._examine = examine

    async def read_topics(self) -> None:
        """Load the topics, once. Prompts that need them wait for it."""
        async with self._topics_lock:
            if not self._has_topics:
                self._topics = await asyncio.to_thread(self._load_topics)
                self._has_topics = True

    def lookup(self, request: ChatRequest, scope: str) -> LessonLookup:
        """Return the lookup for one request. `scope`: id of its API key."""
        return LessonLookup(self, request, scope)

    async def pick_lessons(
        self, messages: Sequence[Message], context: PromptContext, chains: ChainReader
    ) -> PromptLessons:
        """Return the lessons for a prompt, oldest first.

        `context`: without the question; of the conversation, only the name that the client gives. `chains` returns the
        chained hashes of the messages, by which the conversation is found without a name.
        """
        has_lesson = has_lessons(self._store, context.policy, context.key)
        # A wish is about the reply before it.
        has_reply = any(message.get("role") == "assistant" for message in messages)
        if not has_lesson and not has_reply:
            return NO_LESSONS
        if not self._has_topics:
            await self.read_topics()
        # Most prompts get no lesson. To hand each of them to a thread takes more time than all else of the gateway.
        if not has_lesson and self._has_no_wish(messages):
            return NO_LESSONS
        picked, to_examine = await asyncio.to_thread(self._read_lessons, messages, context, chains)
        if self._examine is not None:
            for lesson_set in to_examine:
                self._examine(lesson_set)
        return picked

    def _has_no_wish(self, messages: Sequence[Message]) -> bool:
        """Return whether the newest message certainly has no wish."""
        newest, reply = self._newest_exchange(messages)
        if newest is None or reply is None:
            return True
        if len(message_text(newest)) > MAX_SHORT_CHARS:
            return False
        return not self._topics.may_have_hints(newest, message_text(reply))

    def _read_lessons(
        self, messages: Sequence[Message], context: PromptContext, chains: ChainReader
    ) -> tuple[PromptLessons, list[LessonSetOfPrompt]]:
        context = replace(
            context,
            question=question_hash(
                messages, self._is_ephemeral, key=self._store.secret, user=context.user
            ),
            asked=asked_text(messages, self._is_ephemeral, self._topics.without_scopes),
        )
        with self._store.read() as conn:
            candidates = self._read_candidates(conn, messages, context, chains)
            if self._examine is not None:
                return self._leave_out(conn, candidates)
        texts = {lesson.id: lesson.text for lesson in candidates.fitting}
        return PromptLessons(texts={**texts, **candidates.wishes}), []

    def _read_candidates(
        self,
        conn: Connection,
        messages: Sequence[Message],
        context: PromptContext,
        chains: ChainReader,
    ) -> _PromptCandidates:
        sessions = sessions_of_history(conn, context, chains)
        context = replace(context, sessions=(*context.sessions, *sessions))
        states = (LessonState.ACTIVE, LessonState.LEARNED, LessonState.WITHDRAWN)
        lessons = lessons_for(conn, context, states=states)
        capacity = lesson_capacity(conn, self._identity)
        served = [lesson for lesson in lessons if self._is_served(lesson)]
        in_force = frozenset(lesson.id for lesson in served)
        withdrawn = [lesson for lesson in lessons if lesson.state is LessonState.WITHDRAWN]
        wishes = self._read_wishes(messages)
        new_wishes: dict[str, str] = {}
        if wishes.topics or wishes.hints:
            topic_by_id: dict[str, str] = {}
            for lesson in lessons:
                topic_by_id[lesson.id] = self._topics.topic_of(lesson.text, lesson.topic)
            served = _without_contradicted(served, topic_by_id, wishes)
            known = [(lesson.text, topic_by_id[lesson.id]) for lesson in (*served, *withdrawn)]
            new_wishes = _new_wishes(wishes, known)
        return _PromptCandidates(
            policy=context.policy,
            fitting=fitting_lessons(served, capacity=capacity),
            wishes=new_wishes,
            withdrawn=withdrawn,
            in_force=in_force,
            capacity=capacity,
        )

    def _leave_out(
        self, conn: Connection, candidates: _PromptCandidates
    ) -> tuple[PromptLessons, list[LessonSetOfPrompt]]:
        """Return the lessons without those that are known to cost correctness, and the sets to examine."""
        texts = candidates.examined_texts()
        whole = LessonSetOfPrompt(policy=candidates.policy, texts=tuple(texts))
        choice = whole.choose(conn, self._identity, self._store.secret)
        chosen = [texts[place] for place in choice.chosen]
        to_examine = []
        if choice.missing is not None or choice.left_out:
            to_examine.append(whole)
        with_due = candidates.set_with_due(chosen)
        if with_due is not None:
            to_examine.append(with_due)
        return candidates.lessons_of_choice(texts, {text.id for text in chosen}), to_examine

    def _read_wishes(self, messages: Sequence[Message]) -> Wishes:
        """Return the wishes in the newest message of the person."""
        newest, reply = self._newest_exchange(messages)
        if newest is None:
            return Wishes()
        reply_text = None if reply is None else message_text(reply)
        return self._topics.read_wishes(newest, reply_text)

    def _newest_exchange(
        self, messages: Sequence[Message]
    ) -> tuple[Message | None, Message | None]:
        """Return the newest message of the person and the reply before it, as far as they exist."""
        newest = hinted_index(messages, self._is_ephemeral)
        if newest is None:
            return None, None
        before = reversed(messages[:newest])
        reply = next((message for message in before if message.get("role") == "assistant"), None)
        return messages[newest], reply

    def _is_served(self, lesson: Lesson) -> bool:
        if lesson.is_pinned or lesson.state is LessonState.ACTIVE:
            return True
        return lesson.state is LessonState.LEARNED and self._mode == "always"


class LessonLookup:
    """The lessons for the prompt of one request. `found`: once they were looked up."""

    def __init__(self, picker: LessonPicker, request: ChatRequest, scope: str) -> None:
        self._picker = picker
        self._request = request
        self._scope = scope
        self.found = NO_LESSONS

    async def find_lessons(
        self, origin: tuple[str, str] | None, chains: ChainReader
    ) -> Mapping[str, str]:
        """Return id -> text of the lessons. `origin`: (session, agent) that the first user message states.

        `chains`: as for `LessonPicker.pick_lessons`.
        """
        request = self._request
        stated_session, stated_agent = origin or ("", "")
        agent = request.agent or stated_agent
        session = request.session or stated_session
        context = PromptContext(
            policy=policy_name(self._picker.per, agent=agent, user=request.user, key=self._scope),
            key=self._scope,
            agent=agent,
            user=request.user,
            sessions=(session,) if session else (),
        )
        self.found = await self._picker.pick_lessons(request.messages, context, chains)
        return self.found.texts


def _place_in_prompt(text: ExaminedText) -> float:
    """Return the place of a text among others: lessons are in the order in which they were made, wishes last."""
    return text.lesson.made_at if text.lesson is not None else float("inf")


def _without_contradicted(
    lessons: Sequence[Lesson], topic_by_id: Mapping[str, str], wishes: Wishes
) -> list[Lesson]:
    """Return the lessons without those that the newest message contradicts. Pinned lessons stay."""
    contradicted = {
        id_ for id_, topic in topic_by_id.items() if is_contradicted(topic, wishes.topics)
    }
    return [lesson for lesson in lessons if lesson.is_pinned or lesson.id not in contradicted]


def _new_wishes(wishes: Wishes, known: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return id -> text of the wishes that are not among the known lessons. `known`: (text, topic) of each lesson."""
    topics = {topic for _, topic in known}
    texts = {normalise_lesson(text) for text, _ in known}
    new_wishes = {}
    for topic, text in wishes.hints.items():
        if topic in topics or is_opposed(topic, topics):
            continue
        if normalise_lesson(text) in texts or len(text) > MAX_PROMPT_CHARS:
            continue
        new_wishes[f"{WISH_PREFIX}{topic}"] = text
    return new_wishes
