"""Reads with the llm judge what a verdict's hints say: for which questions, and how they relate to known lessons."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from openclaw_rl.common.rules.lesson_topics import HintTopics
from openclaw_rl.common.rules.stated_scope import names_subject, normalise_subject
from openclaw_rl.errors import JudgeError
from openclaw_rl.judge import prompts
from openclaw_rl.judge.answer_schemas import LESSON_ANSWER
from openclaw_rl.judge.hint_support import HintSupport
from openclaw_rl.judge.leak_check import LeakCheck
from openclaw_rl.judge.lessons.drafts import (
    LessonDraft,
    LessonReach,
    answer_draft,
    facts_of,
    words_of_votes,
)
from openclaw_rl.judge.llm import ChatModel, make_chat_model
from openclaw_rl.judge.vote_parser import parse_lesson
from openclaw_rl.settings.load import Config
from openclaw_rl.store.lessons.lessons import MAX_LESSON_CHARS, Lesson
from openclaw_rl.types import JudgeInput, Message, Verdict

log = logging.getLogger("openclaw_rl.judge")
_WIDER_THAN_QUESTION = ("general", "conversation", "subject")


class LessonReader:
    """Asks `judge.model` once about each verdict with hints. One lesson comes from one verdict."""

    def __init__(
        self,
        config: Config,
        is_ephemeral: Callable[[Message], bool],
        topics: HintTopics,
        *,
        asked: ChatModel | None = None,
    ) -> None:
        """`topics`: of its lessons. `asked` replaces the configured chat model. Raises as `VotingModel` does."""
        self._topics = topics
        self._chat_model = asked or make_chat_model(config, LESSON_ANSWER)
        self._is_ephemeral = is_ephemeral
        self.close = self._chat_model.close

    async def read_lesson(
        self, item: JudgeInput, verdict: Verdict, known: Sequence[Lesson]
    ) -> LessonDraft | None:
        """Return the lesson of a verdict; None without a usable answer, with which the rules decide. Never raises.

        `known`: general lessons that it may repeat or contradict.
        """
        facts = facts_of(verdict)
        messages = prompts.build_lesson_messages(
            item, [*verdict.hints, *facts], [lesson.text for lesson in known], self._is_ephemeral
        )
        try:
            answer = parse_lesson(await self._chat_model.complete_chat(messages))
        except JudgeError as error:
            log.debug("turn %s: no lesson was read: %s", item.turn, error)
            return None
        support = HintSupport(item.reaction, self._topics, item.messages)
        refusal = support.find_refusal(answer["lesson"])
        if refusal is not None:
            log.debug("turn %s: no lesson was read: %s", item.turn, refusal)
            return None
        if not names_subject("\n".join(support.own), normalise_subject(answer["subject"])):
            answer["subject"] = ""
        draft = self._make_draft(item, answer, known, is_fact=not verdict.hints)
        words = next(iter(words_of_votes(verdict).values()), None)
        words = words or support.find_words(answer["lesson"]) or ""
        return None if draft is None else replace(draft, words=words)

    def _make_draft(
        self, item: JudgeInput, answer: dict[str, Any], known: Sequence[Lesson], *, is_fact: bool
    ) -> LessonDraft | None:
        """Return the draft. A text that gives an answer away is never general, whatever the model says."""
        text = answer["lesson"]
        if not 0 < len(text) <= MAX_LESSON_CHARS:
            return None
        leaks = is_fact or LeakCheck(item, self._is_ephemeral).find_leak(text) is not None
        if leaks or answer["scope"] not in _WIDER_THAN_QUESTION:
            return answer_draft(text)
        topic = self._topics.topic_of(text)
        ids = {number: lesson.id for number, lesson in enumerate(known, 1)}
        contradicted = [ids[number] for number in answer["contradicts"] if number in ids]
        if answer["scope"] == "conversation":
            return LessonDraft(
                text=text, reach=LessonReach.SESSION, topic=topic, contradicts=tuple(contradicted)
            )
        if answer["scope"] == "subject":
            if not normalise_subject(answer["subject"]):
                return answer_draft(text)
            return LessonDraft(
                text=text,
                reach=LessonReach.SUBJECT,
                subject=answer["subject"],
                topic=topic,
                contradicts=tuple(contradicted),
            )
        same = ids.get(answer["same"])
        contradicts = tuple(id_ for id_ in contradicted if id_ != same)
        return LessonDraft(
            text=text, reach=LessonReach.GENERAL, topic=topic, same_as=same, contradicts=contradicts
        )
