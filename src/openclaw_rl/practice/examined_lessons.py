"""Select the lessons that may teach: with them in its prompt, the base still answers right."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from openclaw_rl.examination.lesson_choice import LessonSet, choose_lessons
from openclaw_rl.store.lessons import examinations
from openclaw_rl.store.lessons.examinations import ExaminationResult
from openclaw_rl.store.lessons.lessons import Lesson


@dataclass(frozen=True, slots=True, kw_only=True)
class TeachingCheck:
    """Reads the examinations of the lessons in teachers' prompts.

    `key`: of the digests of lessons. `missing`: sets of texts that were not examined yet.
    """

    key: bytes
    missing: set[tuple[str, ...]] = field(default_factory=set)

    def choose(
        self,
        conn: Connection,
        lessons: Sequence[Lesson],
        *,
        targets: Collection[str],
        identity: str,
    ) -> list[Lesson]:
        """Return the lessons of a teacher's prompt without those that cost correctness; none until that is known.

        `targets`: ids of the practised lessons, which leave last. A lesson that is not examined, because it is about
        one question, stays.
        """
        examined = [lesson for lesson in lessons if lesson.is_examined]
        newest = max((lesson.reinforced_at for lesson in examined), default=0.0)

        def order(place: int) -> tuple[bool, float]:
            return examined[place].id in targets, examined[place].weight_at(newest)

        def find_result(places: LessonSet) -> ExaminationResult | None:
            texts = [examined[place].text for place in places]
            return self._find(texts, conn, identity)

        leaving_order = sorted(range(len(examined)), key=order)
        choice = choose_lessons(leaving_order, find_result)
        if choice.missing is not None:
            texts = tuple(examined[place].text for place in choice.missing)
            self.missing.add(texts)
            return []
        # All that were examined, but those that were chosen.
        left_out = {lesson.id for lesson in examined}
        left_out -= {examined[place].id for place in choice.chosen}
        return [lesson for lesson in lessons if lesson.id not in left_out]

    def accepts(self, conn: Connection, text: str, identity: str) -> bool | None:
        """Return whether the base answers right with a text in its prompt; None until that is known."""
        result = self._find([text], conn, identity)
        if result is None:
            self.missing.add((text,))
            return None
        return result.is_sound

    def _find(
        self, texts: Sequence[str], conn: Connection, identity: str
    ) -> ExaminationResult | None:
        digest = examinations.lessons_digest(texts, identity, self.key)
        return examinations.find_result(conn, digest)
