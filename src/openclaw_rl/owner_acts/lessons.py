"""Acts on lessons, by a command or on the page: edit, pin, share and forget.

Each is one transaction with its row of the audit. That row has no words of a lesson: a forgotten one leaves none.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from sqlalchemy import Connection

from openclaw_rl.common.rules.lesson_topics import load_topics
from openclaw_rl.errors import OpenClawError
from openclaw_rl.owner_acts.origin import ActOrigin
from openclaw_rl.settings.load import Config
from openclaw_rl.store.acts import ActKind
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import forgotten_wishes, lessons, pins, removal
from openclaw_rl.store.lessons.lessons import MAX_LESSON_CHARS, Lesson
from openclaw_rl.store.lessons.scopes import LessonScope


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedLesson:
    """Result of an edit. `superseded`: lessons that contradict the new text and are no longer in force.

    `superseded_by`: the lesson because of which the edited one is in no prompt.
    """

    text: str
    superseded: tuple[Lesson, ...]
    superseded_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedLesson:
    """Result of a pin. `rival`: the lesson that had superseded it, as it was before."""

    lesson: Lesson
    rival: Lesson | None


def require_lesson(conn: Connection, id: str) -> Lesson:
    """Return a lesson. Raises `OpenClawError` for an unknown id."""
    lesson = lessons.get(conn, id)
    if lesson is None:
        raise OpenClawError(f"no lesson {id!r}. `openclaw-rl lessons list --all` lists the ids")
    return lesson


def checked_text(text: str) -> str:
    """Return the text of a lesson with single spaces. Raises `OpenClawError` if it can be no lesson."""
    new_text = " ".join(text.split())
    if not new_text:
        raise OpenClawError("the text is empty. `openclaw-rl lessons forget` deletes a lesson")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in new_text):
        raise OpenClawError(
            "the text has control characters, or bytes that are no UTF-8: expected plain text"
        )
    if len(new_text) > MAX_LESSON_CHARS:
        raise OpenClawError(
            f"the text has {len(new_text):,} characters, and a lesson at most {MAX_LESSON_CHARS:,}"
        )
    return new_text


def edit_lesson(
    store: Store, config: Config, id: str, text: str, origin: ActOrigin
) -> EditedLesson:
    """Replace the text of a lesson. Lessons that contradict it, by the topics of the rules, are superseded."""
    new_text = checked_text(text)
    wish = load_topics(config.judge.wishes_path).topic_of(new_text)
    with store.write() as conn:
        lesson = require_lesson(conn, id)
        topic = wish if lesson.scope_kind is not LessonScope.QUESTION else ""
        rivals = removal.replace_text(conn, id, new_text, topic=topic, at=origin.at)
        edited = require_lesson(conn, id)
        origin.record(conn, ActKind.EDIT_LESSON, id, "the lesson has other words")
    return EditedLesson(text=new_text, superseded=tuple(rivals), superseded_by=edited.superseded_by)


def pin_lesson(store: Store, id: str, origin: ActOrigin) -> PinnedLesson:
    """Keep a lesson in prompts, whatever is said later. The one that superseded it is superseded, and not pinned."""
    with store.write() as conn:
        lesson = require_lesson(conn, id)
        rival = pins.pin_in_force(conn, id)
        origin.record(conn, ActKind.PIN_LESSON, id, "the lesson is pinned")
    return PinnedLesson(lesson=lesson, rival=rival)


def unpin_lesson(store: Store, id: str, origin: ActOrigin) -> Lesson:
    """Let a lesson leave prompts, and be superseded by later ones. Returns it as it was before."""
    with store.write() as conn:
        lesson = require_lesson(conn, id)
        lessons.set_pinned(conn, id, False)
        origin.record(conn, ActKind.UNPIN_LESSON, id, "the lesson is not pinned")
    return lesson


def share_lesson(store: Store, id: str, origin: ActOrigin) -> Lesson:
    """Let a lesson reach others than the person who said it. Returns it as it was before."""
    with store.write() as conn:
        lesson = require_lesson(conn, id)
        lessons.share(conn, id)
        origin.record(conn, ActKind.SHARE_LESSON, id, "the lesson is shared")
    return lesson


def forget_lesson(store: Store, id: str, origin: ActOrigin) -> Lesson:
    """Delete a lesson. It leaves prompts; those that it superseded are in force again. Returns what was deleted."""
    with store.write() as conn:
        lesson = require_lesson(conn, id)
        forgotten_wishes.forget_wish(conn, lesson, at=origin.at)
        origin.record(conn, ActKind.FORGET_LESSON, id, "the lesson is forgotten")
    return lesson
