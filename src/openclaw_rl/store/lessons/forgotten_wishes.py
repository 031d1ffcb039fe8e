"""Wishes whose lessons a person has forgotten: a turn that is judged again does not give them once more."""

from __future__ import annotations

from hashlib import blake2b

from sqlalchemy import Connection, select
from sqlalchemy.dialects.sqlite import insert

from openclaw_rl.common.rules.lesson_topics import normalise_lesson
from openclaw_rl.store import schema as t
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson


def record_forgotten(conn: Connection, lesson: Lesson) -> None:
    """Record that the turns of a lesson give it no more. Of the text, only a digest is kept."""
    wish = _wish_name(lesson.topic, lesson.text)
    if rows := [{"turn": one.turn, "wish": wish} for one in lessons.turns_of_lesson(conn, lesson.id)]:
        conn.execute(insert(t.forgotten_wishes).on_conflict_do_nothing(), rows)


def is_forgotten(conn: Connection, turn: str, topic: str, text: str) -> bool:
    """Return whether the lesson with this topic, or of this text, was forgotten after the turn had given it."""
    c = t.forgotten_wishes.c
    found = select(c.turn).where(c.turn == turn, c.wish == _wish_name(topic, text))
    return conn.execute(found).one_or_none() is not None


def _wish_name(topic: str, text: str) -> str:
    return topic or blake2b(normalise_lesson(text).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
