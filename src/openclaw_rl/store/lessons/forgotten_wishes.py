"""Wishes whose lessons a person has forgotten: a turn that is judged again does not give them once more."""

from __future__ import annotations

from sqlalchemy import Connection, select
from sqlalchemy.dialects.sqlite import insert

from openclaw_rl.store import schema as t
from openclaw_rl.store.lessons import lessons, removal
from openclaw_rl.store.lessons.edited_wishes import earlier_wishes, wish_name
from openclaw_rl.store.lessons.lessons import Lesson


def forget_wish(conn: Connection, lesson: Lesson, *, at: float) -> None:
    """Forget a lesson, as `removal.forget` does, and record that its turns give it no more.

    They give it to no other scope, either: a word may be a lesson for its conversation, and count toward one for all
    prompts. Nor do they give what the lesson said before it was edited. Of the texts, only digests are kept.
    """
    wishes = {wish_name(lesson.topic, lesson.text), *earlier_wishes(conn, lesson.id)}
    turns = [link.turn for link in lessons.turns_of_lesson(conn, lesson.id)]
    rows = [{"turn": turn, "wish": wish} for turn in turns for wish in sorted(wishes)]
    if rows:
        conn.execute(insert(t.forgotten_wishes).on_conflict_do_nothing(), rows)
    same = []
    for other in lessons.lessons_of_turns(conn, turns):
        if other.id == lesson.id:
            continue
        if wish_name(other.topic, other.text) in wishes:
            same.append(other.id)
    removal.remove_evidence(conn, turns, at=at, only=same, keep_pinned=True)
    removal.forget(conn, lesson.id, at=at)


def is_forgotten(conn: Connection, turn: str, topic: str, text: str) -> bool:
    """Return whether the lesson with this topic, or of this text, was forgotten after the turn had given it."""
    c = t.forgotten_wishes.c
    query = select(c.turn).where(c.turn == turn, c.wish == wish_name(topic, text))
    return conn.execute(query).one_or_none() is not None
