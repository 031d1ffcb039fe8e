"""Prompts of a person that can be asked again, to compare the replies of two versions."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select, func, select

from openclaw_rl.store import schema as t
from openclaw_rl.store.lessons.lessons import Lesson
from openclaw_rl.types import Capture, ExchangeStatus, Kind

SEARCHED_TURNS = 400
"""Newest turns, of a lesson or of all, among which prompts are searched."""


def prompts_of_lesson(conn: Connection, lesson: Lesson, limit: int) -> list[str]:
    """Return turns: those that gave the lesson, newest first, and then others of the same person.

    Prompts without a lesson in them come first: with one, every version follows it.
    """
    link = t.lesson_turns.c
    evidence = select(link.turn).where(link.lesson == lesson.id).order_by(link.at.desc())
    of_lesson = _askable(t.turns.c.id.in_(evidence.limit(SEARCHED_TURNS)))
    agent, user = lesson.owner
    newest = select(func.max(t.turns.c.seq) - SEARCHED_TURNS).scalar_subquery()
    of_person = _askable(t.turns.c.seq > newest, t.exchanges.c.scope == lesson.key)
    if lesson.is_practised:
        of_person = of_person.where(t.exchanges.c.agent == agent)
    if user:
        of_person = of_person.where(t.exchanges.c.user == user)
    prompts: dict[str, None] = {}
    for query in (of_lesson, of_person):
        prompts |= dict.fromkeys(conn.execute(query.limit(2 * limit)).scalars())
    return list(prompts)[:limit]


def prompts_of_version(conn: Connection, version: int, limit: int) -> list[str]:
    """Return turns that the version was trained on; of replies of practice, the turns whose prompt they answer."""
    used = select(t.uses.c.turn).where(t.uses.c.policy == version)
    practised = select(t.practice_turns.c.source).where(t.practice_turns.c.turn.in_(used))
    is_used = t.turns.c.id.in_(used) | t.turns.c.id.in_(practised)
    return list(conn.execute(_askable(is_used).limit(limit)).scalars())


def _askable(*conditions: Any) -> Select[str]:
    """Select turns of conversations here whose prompt is stored; the newest first."""
    x = t.exchanges.c
    return (
        select(t.turns.c.id)
        .join(t.exchanges, x.seq == t.turns.c.seq)
        .join(t.bodies, t.bodies.c.seq == t.turns.c.seq)
        .where(
            *conditions,
            t.equals_literal(t.turns.c.kind, Kind.MAIN),
            x.origin.is_(None),
            x.episode.is_(None),
            x.capture == Capture.FULL.value,
            x.status == ExchangeStatus.DONE.value,
            t.bodies.c.prompt_ids.is_not(None),
        )
        .order_by(t.bodies.c.lessons.is_not(None), t.turns.c.seq.desc())
    )
