"""Withdrawal of lessons that cost correctness, and their return."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import Connection, func, select, update

from openclaw_rl.store import events
from openclaw_rl.store import schema as t
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.examinations import Withdrawal, withdrawal_to_json
from openclaw_rl.store.lessons.lessons import LessonState

WITHDRAWN_EVENT = "lesson.withdrawn"
"""Event: a lesson left the prompts, because answers are not right with it. Its data is the `Withdrawal`."""
RESTORED_EVENT = "lesson.restored"
"""Event: a withdrawn lesson is in prompts again: answers stayed right in another examination."""


def withdraw(conn: Connection, id: str, text: str, withdrawal: Withdrawal) -> bool:
    """Take a lesson out of prompts and of practice, or renew the figures of one that is withdrawn.

    `text`: as it was examined. Returns whether there is an event of it: the lesson left the prompts now, or was said
    again since it did. A lesson whose text was edited since, or that another one has superseded, is left as it is.
    """
    lesson = lessons.get(conn, id)
    if lesson is None or lesson.text != text or lesson.state is LessonState.SUPERSEDED:
        return False
    values = {
        "state": LessonState.WITHDRAWN.value,
        "learned_version": None,
        "withdrawal": withdrawal_to_json(withdrawal),
    }
    conn.execute(update(t.lessons).where(t.lessons.c.id == id).values(values))
    if lesson.withdrawal is not None and lesson.reinforced_at <= lesson.withdrawal.at:
        return False
    events.append(conn, WITHDRAWN_EVENT, id, asdict(withdrawal), withdrawal.at)
    return True


def restore(conn: Connection, id: str, text: str, *, at: float) -> bool:
    """Put a withdrawn lesson into force again, with an event. Returns whether it was; `text` as for `withdraw`."""
    lesson = lessons.get(conn, id)
    if lesson is None or lesson.text != text or lesson.state is not LessonState.WITHDRAWN:
        return False
    lessons.mark_active(conn, id)
    events.append(conn, RESTORED_EVENT, id, {}, at)
    return True


def count_by_owner(conn: Connection, state: LessonState) -> dict[tuple[str, str], int]:
    """Return the number of lessons in a state, by (policy, key)."""
    c = t.lessons.c
    query = select(c.policy, c.key, func.count().label("number")).where(c.state == state.value)
    rows = conn.execute(query.group_by(c.policy, c.key).order_by(c.policy, c.key))
    return {(row.policy, row.key): row.number for row in rows}
