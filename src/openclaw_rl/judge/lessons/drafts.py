"""Drafts of lessons from a verdict, without a model: by the topics of the rules, and by where a hint comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.common.rules.lesson_topics import HintTopics, normalise_lesson
from openclaw_rl.judge.voting import distinct_hints
from openclaw_rl.store.lessons.lessons import MAX_LESSON_CHARS
from openclaw_rl.types import Feedback, Verdict

_ANSWER_SUBJECT = "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonDraft:
    """One lesson that a verdict suggests. `is_general`: it is for all questions, not for the one that was asked."""

    text: str
    is_general: bool
    topic: str = ""
    same_as: str | None = None  # id of the lesson that says the same
    contradicts: tuple[str, ...] = ()  # ids of lessons


def draft_lessons(verdict: Verdict, feedback: Sequence[Feedback], topics: HintTopics) -> list[LessonDraft]:
    """Return a draft for each hint of the verdict, and for each fact that its votes brought to light.

    A wish of the judge is general, and so is a correction that a rule can read ("shorter, please"). Any other
    correction, a hint of the teacher, and a fact are about the one answer.
    """
    corrections = {normalise_lesson(given.correction) for given in feedback if given.correction}
    by_judge = {normalise_lesson(vote.hint) for vote in verdict.votes if vote.hint} - corrections
    drafts = []
    for hint in verdict.hints:
        said = normalise_lesson(hint)
        rule = topics.find_rule(hint, as_reaction=said in corrections)
        if rule is not None and rule.hint:
            drafts.append(LessonDraft(text=rule.hint, is_general=True, topic=rule.topic or ""))
        elif said in by_judge:
            drafts.append(LessonDraft(text=hint, is_general=True))
        else:
            drafts.append(answer_draft(hint))
    drafts += map(answer_draft, facts_of(verdict))
    return [draft for draft in drafts if len(draft.text) <= MAX_LESSON_CHARS]


def facts_of(verdict: Verdict) -> tuple[str, ...]:
    """Return what the votes with the verdict's score say about the answer itself."""
    return distinct_hints(vote.fact for vote in verdict.votes if vote.score == verdict.score)


def answer_draft(text: str) -> LessonDraft:
    """Return a draft about one answer: of two such lessons about the same question, the later one counts."""
    text = " ".join(text.split())
    return LessonDraft(text=text, is_general=False, topic=f"{_ANSWER_SUBJECT}/{normalise_lesson(text)}")
