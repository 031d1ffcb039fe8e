"""Drafts of lessons from long and from many corrections: the store is locked meanwhile, so they take no time."""

from __future__ import annotations

import pytest
from tests.growth import check_linear_growth

from openclaw_rl.common.rules.lesson_topics import HintTopics
from openclaw_rl.judge.lessons.drafts import MAX_READ_HINTS, LessonDraft, draft_lessons
from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.types import Feedback, Reaction, Verdict

TOPICS = HintTopics(RulesJudge.load().files)
SHORT = "length/short"


def drafts_of(*corrections: str) -> list[LessonDraft]:
    given = tuple(
        Feedback(id=f"f{n}", scope="key", target="t", score=-1, correction=text, given_at=float(n))
        for n, text in enumerate(corrections)
    )
    reaction = Reaction(
        turn="t", revision=1, messages=(), feedback=given, source="feedback", how="explicit", at=1.0
    )
    verdict = Verdict(
        turn="t", revision=1, judge="explicit", score=-1, hints=corrections, explicit=True, at=1.0
    )
    return draft_lessons(verdict, reaction, TOPICS)


@pytest.mark.parametrize("unit", ["a. ", "When I ask about x. ", "x ", ". "])
def test_a_long_correction_is_read_in_linear_time(unit: str) -> None:
    """A text of that length is a pasted one, of which nothing says what the person wrote."""

    def correction(size: int) -> str:
        return f"Shorter, please. {unit * (size // len(unit))}"

    assert not drafts_of(correction(60_000))
    check_linear_growth(drafts_of, correction, 60_000)


def test_of_a_thousand_corrections_the_newest_become_lessons() -> None:
    def corrections(count: int) -> list[str]:
        return [f"Shorter, please. It is {n}." for n in range(count)]

    check_linear_growth(lambda texts: drafts_of(*texts), corrections, 1_000)
    drafts = drafts_of(*corrections(1_000))
    assert [draft.text for draft in drafts if draft.topic != SHORT] == [
        f"It is {n}." for n in range(1_000 - MAX_READ_HINTS, 1_000)
    ]


@pytest.mark.parametrize(
    "fact", ["It is 3.5 percent.", "The site is example.com, not example.org.", "Wait?! No: 7."]
)
def test_a_fact_beside_a_wish_keeps_its_words(fact: str) -> None:
    assert [draft.text for draft in drafts_of(f"Shorter, please. {fact}")] == [
        "Keep answers short.",
        fact,
    ]
