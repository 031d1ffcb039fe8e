"""Drafts of lessons from a verdict, without a model: by the topics of the rules, and by where a hint comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from openclaw_rl.common.client_patterns import head_and_tail
from openclaw_rl.common.message_hash import normalise_text, visible_text
from openclaw_rl.common.rules.lesson_topics import MAX_WISH_CHARS, HintTopics, normalise_lesson
from openclaw_rl.common.rules.rule_files import Rule
from openclaw_rl.common.rules.stated_scope import StatedScope
from openclaw_rl.judge.voting import distinct_hints
from openclaw_rl.store.lessons.lessons import MAX_LESSON_CHARS
from openclaw_rl.types import Reaction, Verdict

MAX_READ_HINTS = 8
"""Newest hints of a verdict that become lessons, and newest pieces of feedback in which their limits are searched."""
MAX_READ_SENTENCES = 64
"""A correction of more sentences is a text, in which no fact is searched beside a wish."""
_ANSWER_SUBJECT = "answer"
# With "3.5" and "node.js" in one piece.
_SENTENCES = re.compile(r"(?:[^.!?。！？\n]|[.!?](?=\S))+[.!?。！？]*")


class LessonReach(StrEnum):
    """For which prompts a lesson is: all, those about a subject, this conversation, or the question that was asked."""

    GENERAL = "general"
    SUBJECT = "subject"
    SESSION = "session"
    QUESTION = "question"


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonDraft:
    """One lesson that a verdict suggests. `subject`: what the prompts are about, of the reach of this name."""

    text: str
    reach: LessonReach
    subject: str = ""
    topic: str = ""
    same_as: str | None = None  # id of the lesson that says the same
    contradicts: tuple[str, ...] = ()  # ids of lessons


def draft_lessons(
    verdict: Verdict, reaction: Reaction | None, topics: HintTopics
) -> list[LessonDraft]:
    """Return a draft for each hint of the verdict, and for each fact that its votes brought to light.

    A wish of the judge is general, and so is a correction that a rule can read ("shorter, please"), unless the person
    limits it to this conversation or a subject. Any other correction, a hint of the teacher, and a fact are about the
    one answer.
    """
    corrections: set[str] = set()
    texts: list[str] = []
    if reaction is not None:
        texts = list(_texts_of_person(reaction))
        stated = filter(None, (one.correction for one in reaction.feedback))
        corrections = set(map(normalise_lesson, stated))
    by_judge = {normalise_lesson(vote.hint) for vote in verdict.votes if vote.hint} - corrections
    drafts: list[LessonDraft] = []
    for hint in verdict.hints[-MAX_READ_HINTS:]:
        is_correction = normalise_lesson(hint) in corrections
        rule = topics.find_rule(head_and_tail(hint, MAX_WISH_CHARS), as_reaction=is_correction)
        if rule is not None and rule.hint:
            drafts.append(_wish_draft(rule.hint, rule, topics.find_scope(texts, rule.hint)))
            if is_correction:
                drafts += _rest_of_correction(hint, topics)
        elif normalise_lesson(hint) in by_judge:
            drafts.append(_wish_draft(hint, None, topics.find_scope(texts, None)))
        else:
            drafts.append(answer_draft(hint))
    drafts += map(answer_draft, facts_of(verdict))
    return [draft for draft in drafts if len(draft.text) <= MAX_LESSON_CHARS]


def _texts_of_person(reaction: Reaction) -> Iterator[str]:
    for message in reaction.messages:
        if message.get("role") == "user":
            yield head_and_tail(visible_text(message), MAX_WISH_CHARS)
    for one in sorted(reaction.feedback, key=lambda f: f.given_at)[-MAX_READ_HINTS:]:
        for text in filter(None, (one.comment, one.correction)):
            yield head_and_tail(normalise_text(text), MAX_WISH_CHARS)


def _wish_draft(text: str, rule: Rule | None, scope: StatedScope | None) -> LessonDraft:
    reach = LessonReach.GENERAL
    if scope is not None:
        reach = LessonReach.SUBJECT if scope.subject else LessonReach.SESSION
    topic = (rule.topic if rule is not None else None) or ""
    subject = scope.subject if scope is not None else ""
    return LessonDraft(text=text, reach=reach, subject=subject, topic=topic)


def _rest_of_correction(correction: str, topics: HintTopics) -> Iterator[LessonDraft]:
    """Yield a draft about the answer of the sentences that no rule reads: "Shorter, please. It is Canberra."."""
    parts = (sentence[0].strip() for sentence in _SENTENCES.finditer(correction))
    sentences = list(islice(parts, MAX_READ_SENTENCES + 1))
    if len(sentences) > MAX_READ_SENTENCES or len(correction) > MAX_WISH_CHARS:
        return
    rest = []
    for sentence in filter(None, sentences):
        if topics.find_rule(sentence, as_reaction=True) is None:
            rest.append(sentence)
    if rest and len(rest) < len(sentences):
        yield answer_draft(" ".join(rest))


def facts_of(verdict: Verdict) -> tuple[str, ...]:
    """Return what the votes with the verdict's score say about the answer itself."""
    return distinct_hints(vote.fact for vote in verdict.votes if vote.score == verdict.score)


def answer_draft(text: str) -> LessonDraft:
    """Return a draft about one answer: of two such lessons about the same question, the later one counts."""
    text = " ".join(text.split())
    return LessonDraft(
        text=text, reach=LessonReach.QUESTION, topic=f"{_ANSWER_SUBJECT}/{normalise_lesson(text)}"
    )
