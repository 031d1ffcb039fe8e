"""Numbers of lessons."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from openclaw_rl.store import schema as t
from openclaw_rl.store.lessons.lessons import LessonState


def count_by_state(conn: Connection) -> dict[LessonState, int]:
    """Return the number of lessons in each state that has any, the state of the oldest lesson first."""
    c = t.lessons.c
    query = select(c.state, func.count().label("number")).group_by(c.state)
    rows = conn.execute(query.order_by(func.min(c.made_at)))
    return {LessonState(row.state): row.number for row in rows}
