"""The lessons of one prompt that are examined together, and what is known of them."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from sqlalchemy import Connection

from openclaw_rl.examination.lesson_choice import LessonChoice, LessonSet, choose_lessons
from openclaw_rl.store.lessons import examinations
from openclaw_rl.store.lessons.examinations import ExaminationResult
from openclaw_rl.store.lessons.lessons import Lesson, LessonState

WISH_WEIGHT = 1.0
"""Weight of a wish in the newest message: that of a lesson that was said once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedText:
    """A lesson in a prompt, or a wish of the newest message that is no lesson yet.

    `lesson`: None for a wish. `order`: the text with the lowest one leaves first. `said_at`: time at which a withdrawn
    lesson was said last; an earlier examination of it does not count.
    """

    id: str
    text: str
    lesson: Lesson | None = None
    order: tuple[bool, float] = (False, WISH_WEIGHT)
    said_at: float = 0.0

    @classmethod
    def of_lesson(cls, lesson: Lesson, now: float) -> ExaminedText:
        """Return the text of a lesson. `now`: time of its weight, in seconds since the epoch."""
        is_withdrawn = lesson.state is LessonState.WITHDRAWN
        return cls(
            id=lesson.id,
            text=lesson.text,
            lesson=lesson,
            order=(lesson.is_pinned, lesson.weight_at(now)),
            said_at=lesson.reinforced_at if is_withdrawn else 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonSetOfPrompt:
    """The texts that are examined together, in the order of the prompt. `policy`: name of the one that answers."""

    policy: str
    texts: tuple[ExaminedText, ...]

    @property
    def leaving_order(self) -> list[int]:
        """The places of the texts, in the order in which they leave the prompt."""
        return sorted(range(len(self.texts)), key=lambda place: self.texts[place].order)

    def texts_at(self, places: LessonSet) -> list[str]:
        return [self.texts[place].text for place in places]

    def choose(self, conn: Connection, identity: str, key: bytes) -> LessonChoice:
        """Return the choice for the prompt, by the examinations so far. `key`: of the digests."""

        def find_result(places: LessonSet) -> ExaminationResult | None:
            digest = examinations.lessons_digest(self.texts_at(places), identity, key)
            result = examinations.find_result(conn, digest, policy=self.policy)
            said_at = max(self.texts[place].said_at for place in places)
            if result is not None and not result.is_sound and result.at < said_at:
                return None
            return result

        return choose_lessons(self.leaving_order, find_result)


def is_due_again(lesson: Lesson, in_force: AbstractSet[str]) -> bool:
    """Return whether a withdrawn lesson is examined again. `in_force`: ids of the lessons that are in force.

    It is if it was said again since, or if a lesson beside which it cost correctness is no longer in force.
    """
    withdrawal = lesson.withdrawal
    if lesson.state is not LessonState.WITHDRAWN or withdrawal is None:
        return False
    was_said = lesson.reinforced_at > withdrawal.at
    return was_said or any(other not in in_force for other in withdrawal.beside)
