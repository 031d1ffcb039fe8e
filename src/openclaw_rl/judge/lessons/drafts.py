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
from openclaw_rl.common.rules.speakers import own_words
from openclaw_rl.common.rules.stated_scope import StatedScope
from openclaw_rl.judge.heard import heard_reaction
from openclaw_rl.judge.hint_support import HintSupport
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
    words: str = ""  # of the person, which support it


def draft_lessons(
    verdict: Verdict, reaction: Reaction | None, topics: HintTopics
) -> list[LessonDraft]:
    """Return a draft for each hint of the verdict, and for each fact that its votes brought to light.

    A wish of the judge is general, and so is a correction that a rule can read ("shorter, please"), unless the person
    limits it to this conversation or a subject. Any other correction, a hint of the teacher, and a fact are about the
    one answer. A hint that the person's own words do not support gives none.
    """
    if reaction is None:
        return []
    reader = _HintReader(verdict, reaction, topics)
    drafts = [draft for hint in verdict.hints[-MAX_READ_HINTS:] for draft in reader.read(hint)]
    drafts += map(reader.read_fact, facts_of(verdict))
    is_supported = bool(reader.support.own)
    return [draft for draft in drafts if is_supported and len(draft.text) <= MAX_LESSON_CHARS]


class _HintReader:
    """Reads the hints of one verdict."""

    def __init__(self, verdict: Verdict, reaction: Reaction, topics: HintTopics) -> None:
        heard = heard_reaction(reaction)
        stated = filter(None, (one.correction for one in heard.feedback))
        self.support = HintSupport(reaction, topics)
        self._topics = topics
        self._texts = list(_texts_of_person(heard))
        self._corrections = set(map(normalise_lesson, stated))
        self._by_judge = {normalise_lesson(vote.hint) for vote in verdict.votes if vote.hint}
        self._named = words_of_votes(verdict)

    def read(self, hint: str) -> Iterator[LessonDraft]:
        """Yield the drafts of a hint; none if the person's own words do not support it."""
        is_correction = normalise_lesson(hint) in self._corrections
        if is_correction:
            yield self._read_wish(hint, hint, is_correction=True)
            yield from _rest_of_correction(hint, self._topics)
        elif self.support.find_refusal(hint) is None:
            yield self._read_wish(hint, self._words(hint), is_correction=False)

    def read_fact(self, fact: str) -> LessonDraft:
        return answer_draft(fact, self._words(fact))

    def _words(self, hint: str) -> str:
        named = self._named.get(normalise_lesson(hint))
        return named or self.support.find_words(hint) or ""

    def _read_wish(self, hint: str, words: str, *, is_correction: bool) -> LessonDraft:
        text = head_and_tail(hint, MAX_WISH_CHARS)
        rule = self._topics.find_rule(text, as_reaction=is_correction)
        if rule is not None and rule.hint:
            scope = self._topics.find_scope(self._texts, rule.hint)
            return _wish_draft(rule.hint, rule, scope, words)
        if normalise_lesson(hint) in self._by_judge - self._corrections:
            return _wish_draft(hint, None, self._topics.find_scope(self._texts, None), words)
        return answer_draft(hint, words)


def words_of_votes(verdict: Verdict) -> dict[str, str]:
    """Return the person's words for each hint and fact of the votes, by the normalised text."""
    words: dict[str, str] = {}
    for vote in verdict.votes:
        text = vote.hint or vote.fact
        if text and vote.words:
            words.setdefault(normalise_lesson(text), vote.words)
    return words


def _texts_of_person(reaction: Reaction) -> Iterator[str]:
    for message in reaction.messages:
        if message.get("role") == "user":
            yield own_words(head_and_tail(visible_text(message), MAX_WISH_CHARS))
    for one in sorted(reaction.feedback, key=lambda f: f.given_at)[-MAX_READ_HINTS:]:
        for text in filter(None, (one.comment, one.correction)):
            yield own_words(head_and_tail(normalise_text(text), MAX_WISH_CHARS))


def _wish_draft(text: str, rule: Rule | None, scope: StatedScope | None, words: str) -> LessonDraft:
    reach = LessonReach.GENERAL
    if scope is not None:
        reach = LessonReach.SUBJECT if scope.subject else LessonReach.SESSION
    topic = (rule.topic if rule is not None else None) or ""
    subject = scope.subject if scope is not None else ""
    return LessonDraft(text=text, reach=reach, subject=subject, topic=topic, words=words)


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
        yield answer_draft(" ".join(rest), correction)


def facts_of(verdict: Verdict) -> tuple[str, ...]:
    """Return what the votes with the verdict's score say about the answer itself."""
    return distinct_hints(vote.fact for vote in verdict.votes if vote.score == verdict.score)


def answer_draft(text: str, words: str = "") -> LessonDraft:
    """Return a draft about one answer: of two such lessons about the same question, the later one counts.

    `words`: of the person, which support it.
    """
    text = " ".join(text.split())
    return LessonDraft(
        text=text,
        reach=LessonReach.QUESTION,
        topic=f"{_ANSWER_SUBJECT}/{normalise_lesson(text)}",
        words=words,
    )
