"""Conflicts between a lesson for a conversation or a subject and general ones, where no topic of a rule shows them.

A language model reads this. In the prompts of the narrower lesson, the general one is left out; elsewhere it stays.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, literal, select
from sqlalchemy.dialects.sqlite import insert

from openclaw_rl.store import schema as t


def record_conflicts(conn: Connection, lesson: str, others: Collection[str]) -> None:
    """Record that a lesson contradicts these; those that were forgotten meanwhile are left out."""
    c = t.lessons.c
    rows = select(literal(lesson), c.id).where(c.id.in_(list(others)), c.id != lesson)
    conn.execute(
        insert(t.lesson_conflicts).from_select(["lesson", "other"], rows).on_conflict_do_nothing()
    )


def conflicts_among(conn: Connection, ids: Collection[str]) -> set[frozenset[str]]:
    """Return the pairs of these lessons that contradict each other."""
    c = t.lesson_conflicts.c
    query = select(c.lesson, c.other).where(c.lesson.in_(list(ids)), c.other.in_(list(ids)))
    return {frozenset((row.lesson, row.other)) for row in conn.execute(query)}
