"""The questions with which lessons are examined."""

from __future__ import annotations

from openclaw_rl.examination.probe_set import Probe, load_lesson_probes, load_typical_lessons
from openclaw_rl.examination.reference import MAX_QUESTIONS, accepted_losses, reference_probes
from openclaw_rl.store.lessons.fitting import MAX_PROMPT_LESSONS

PROBES = load_lesson_probes()


def test_questions_that_the_base_answers_right_are_the_reference() -> None:
    answers = {probe.question: probe.answers[0] for probe in PROBES} | {
        PROBES[0].question: "No idea."
    }
    references = reference_probes(PROBES, answers)
    assert (references, len(references)) == (PROBES[1 : 1 + MAX_QUESTIONS], MAX_QUESTIONS)


def test_own_answers_are_the_reference_of_a_base_that_knows_little() -> None:
    """What is in several answers, and what was asked, says nothing."""
    answers = {
        probe.question: f"The word is w{n}, you see: {probe.question}"
        for n, probe in enumerate(PROBES)
    }
    references = reference_probes(PROBES, answers)
    assert len(references) == MAX_QUESTIONS
    assert references[3].is_correct("It is W3.")
    assert not references[3].is_correct("The word is w4, you see: What is it?")


def test_a_base_that_answers_nothing_has_no_reference() -> None:
    assert reference_probes(PROBES, {}) == []


def test_accepted_losses() -> None:
    assert [accepted_losses(count) for count in (8, 20, 40)] == [1, 1, 2]


def test_an_answer_may_be_in_another_language() -> None:
    snow = Probe(name="snow", question="What colour is snow?", answers=("white", "weiß", "白"))
    assert all(snow.is_correct(reply) for reply in ("WHITE!", "Schnee ist weiß.", "雪是白色的。"))
    assert not snow.is_correct("whitewash")


def test_shipped_questions_and_lessons_suffice() -> None:
    assert len(PROBES) >= MAX_QUESTIONS
    assert len(set(load_typical_lessons())) >= MAX_PROMPT_LESSONS
