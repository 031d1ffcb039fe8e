"""A version that recites a lesson is refused."""

from __future__ import annotations

from openclaw_rl.gates.lesson_echoes import LessonEchoes
from openclaw_rl.reasons import ReasonCode

LESSONS = [
    "Keep answers short.",
    "Always end each answer with a friendly question.",
    "回答要简短，并且使用列表的形式。",
]


def test_answers_with_the_text_of_a_lesson_refuse_the_version() -> None:
    echoes = LessonEchoes(LESSONS)
    echoes.add("What is 2 + 2?", "4", "Keep answers short. 4")
    assert echoes.rejection_reason() is None, "one may be chance"
    echoes.add("Capital of France?", "Paris", "Paris. And end each answer with a friendly smile")
    reason = echoes.rejection_reason()
    assert reason is not None
    assert reason.code is ReasonCode.ECHO
    assert "2 of its answers" in str(reason)


def test_a_version_that_follows_its_lessons_passes() -> None:
    echoes = LessonEchoes(LESSONS)
    for answer in ("4", "Four. Do you need more?", "Short answers are good answers."):
        echoes.add("What is 2 + 2?", "The answer is 4.", answer)
    echoes.add("Translate: keep answers short", "Keep answers short", "Keep answers short")
    echoes.add("Say it.", "keep answers short", "Keep answers short.")
    assert echoes.echoed == []


def test_echoes_in_a_script_without_spaces_are_found() -> None:
    echoes = LessonEchoes(LESSONS)
    echoes.add("二加二？", "四", "四。并且使用列表的形式")
    assert echoes.echoed == [LESSONS[2]]
