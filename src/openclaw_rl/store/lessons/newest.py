"""The lessons that were made last."""

from __future__ import annotations

from sqlalchemy import Connection, select

from openclaw_rl.store import schema as t
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson, LessonState


def newest_lessons(conn: Connection, limit: int) -> list[Lesson]:
    """Return at most `limit` lessons that no other one contradicts, newest first."""
    c = t.lessons.c
    query = select(c.id).where(c.state != LessonState.SUPERSEDED.value)
    ids = conn.execute(query.order_by(c.made_at.desc()).limit(limit)).scalars().all()
    newest = [lessons.get(conn, id_) for id_ in ids]
    return [lesson for lesson in newest if lesson is not None]
