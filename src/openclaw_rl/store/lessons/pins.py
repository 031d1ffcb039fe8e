"""Pin a lesson that another one has superseded."""

from __future__ import annotations

from sqlalchemy import Connection

from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson


def pin_in_force(conn: Connection, id: str) -> Lesson | None:
    """Pin a lesson and put it into force.

    Returns the lesson in force that had superseded it, as it was. That one is superseded now, and not pinned. One of a
    wider scope stays in force for other prompts.
    """
    lesson = lessons.get(conn, id)
    rival = _lesson_in_force(conn, id)
    lessons.set_pinned(conn, id, True)
    if lesson is None or rival is None or rival.id == id:
        return None
    lessons.mark_active(conn, id)
    if (rival.scope_kind, rival.scope_value) != (lesson.scope_kind, lesson.scope_value):
        return None
    lessons.supersede(conn, rival.id, id)
    lessons.set_pinned(conn, rival.id, False)
    return rival


def _lesson_in_force(conn: Connection, id: str) -> Lesson | None:
    """Return the lesson at the end of the chain of those that superseded one another; the lesson itself if none did."""
    lesson = lessons.get(conn, id)
    seen = set[str]()
    while lesson is not None and lesson.superseded_by is not None and lesson.id not in seen:
        seen.add(lesson.id)
        lesson = lessons.get(conn, lesson.superseded_by)
    return lesson
