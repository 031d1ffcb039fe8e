"""Other words for lessons, and the record of what they said before a person edited them.

A turn that is judged again gives the edited lesson.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

from sqlalchemy import Connection, select, update

from openclaw_rl.common.rules.lesson_topics import normalise_lesson
from openclaw_rl.store import events
from openclaw_rl.store import schema as t
from openclaw_rl.store.lessons.lessons import Lesson
from openclaw_rl.store.rows import from_json

EDITED_EVENT = "lesson.edited"
"""Event: a person replaced the text of a lesson; `data["wish"]` is the name of what it said before (`wish_name`)."""


def wish_name(topic: str, text: str) -> str:
    """Return the name of a wish: its topic, or a digest of the text where no topic is known."""
    return (
        topic
        or blake2b(
            normalise_lesson(text).encode("utf-8", "surrogatepass"), digest_size=16
        ).hexdigest()
    )


def record_edit(conn: Connection, lesson: Lesson, *, at: float) -> None:
    """Record what a lesson says, before its text is replaced."""
    events.append(conn, EDITED_EVENT, lesson.id, {"wish": wish_name(lesson.topic, lesson.text)}, at)


def earlier_wishes(conn: Connection, id: str) -> set[str]:
    """Return the names of what a lesson said before its edits."""
    edits = select(t.events.c.data).where(t.events.c.kind == EDITED_EVENT, t.events.c.ref == id)
    return {from_json(data)["wish"] for data in conn.execute(edits).scalars()}


def restate(conn: Connection, lesson: Lesson, text: str) -> Lesson:
    """Let a lesson say the same wish in other words, unless a person pinned or edited it. Returns the lesson.

    What was measured and practised with the earlier words stays.
    """
    if lesson.is_pinned or earlier_wishes(conn, lesson.id):
        return lesson
    conn.execute(update(t.lessons).where(t.lessons.c.id == lesson.id).values(text=text))
    return replace(lesson, text=text)
