"""Choice of those lessons that fit into one prompt."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from openclaw_rl.store.lessons.examinations import ASSUMED_CAPACITY
from openclaw_rl.store.lessons.lessons import Lesson

MAX_PROMPT_LESSONS = 8
"""Lessons in one prompt, however many the base carries: pinned ones first, then those of its question, conversation and
subject, then the heaviest."""
MAX_PROMPT_CHARS = 2000
"""Characters of all lessons in one prompt."""


def fitting_lessons(
    candidates: Sequence[Lesson], *, capacity: int = ASSUMED_CAPACITY, first: Collection[str] = ()
) -> list[Lesson]:
    """Return those lessons that fit into one prompt, in the order given. `MAX_PROMPT_LESSONS` says which come first.

    `capacity`: how many the base carries. `first`: ids of lessons that come before all others.
    """
    newest = max((lesson.reinforced_at for lesson in candidates), default=0.0)

    def order(lesson: Lesson) -> tuple[bool, bool, bool, float]:
        return (
            lesson.id in first,
            lesson.is_pinned,
            not lesson.is_practised,
            lesson.weight_at(newest),
        )

    space = MAX_PROMPT_CHARS
    chosen = set[str]()
    for lesson in sorted(candidates, key=order, reverse=True)[: min(capacity, MAX_PROMPT_LESSONS)]:
        if len(lesson.text) <= space:
            chosen.add(lesson.id)
            space -= len(lesson.text)
    return [lesson for lesson in candidates if lesson.id in chosen]
