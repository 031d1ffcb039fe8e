"""Removal of lessons, their evidence and their text, and of practice turns that no version was published with."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, delete, exists, select

from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store import events, turn_states
from openclaw_rl.store import schema as t
from openclaw_rl.store.lessons import edited_wishes, examinations, lessons
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.turns import PRACTICE_JUDGE, add_verdict, current_verdict
from openclaw_rl.types import PolicyState, TurnState

_FORGOTTEN = "the lesson that it practises was forgotten"
_EDITED = "the text of the lesson that it practises was edited"


def forget(conn: Connection, id: str, *, at: float) -> None:
    """Delete a lesson with its evidence. Lessons that it superseded are in force again.

    Where those of one scope contradict each other, the newest is; where the lesson was superseded itself, its successor
    stays. Turns of practice are taken back if no version was published with them.
    """
    freed = freed_lessons(conn, id)
    turn_states.take_back(conn, _unpublished_practice(conn, id), _FORGOTTEN, at=at)
    conn.execute(delete(t.lessons).where(t.lessons.c.id == id))
    examinations.clear_waiting(conn)
    for other, by in freed:
        if by == other.id:
            lessons.mark_active(conn, other.id)
        else:
            lessons.supersede(conn, other.id, by)


def freed_lessons(conn: Connection, id: str) -> list[tuple[Lesson, str]]:
    """Return the lessons that this one superseded, newest first, and which one is in force when it is forgotten.

    That is the lesson itself, a newer one of its scope that contradicts it, or the successor of the forgotten one.
    """
    successor = conn.execute(
        select(t.lessons.c.superseded_by).where(t.lessons.c.id == id)
    ).scalar_one_or_none()
    newest = dict[tuple[str, str, str], str]()
    freed = []
    superseded = lessons.superseded_lessons(conn, id)
    for other in sorted(superseded, key=lambda lesson: lesson.reinforced_at, reverse=True):
        rivals = other.scope_kind, other.scope_value, other.subject or other.id
        freed.append((other, successor or newest.setdefault(rivals, other.id)))
    return freed


def replace_text(
    conn: Connection, id: str, text: str, *, topic: str = "", at: float
) -> list[Lesson]:
    """Replace the text of a lesson, as `lessons.edit_text` does.

    Turns of practice with the earlier text are taken back if no version was published with them. The lessons in force
    that contradict the new topic are superseded, and returned; if one of them is pinned, the edited lesson is instead,
    unless it is pinned itself.
    """
    lesson = lessons.get(conn, id)
    if lesson is None:
        return []
    turn_states.take_back(conn, _unpublished_practice(conn, id), _EDITED, at=at)
    edited_wishes.record_edit(conn, lesson, at=at)
    lessons.edit_text(conn, id, text, topic=topic, at=at)
    examinations.clear_waiting(conn)
    if topic in ("", lesson.topic):
        return []
    return _settle_edit(conn, lesson, topic, at=at)


def _settle_edit(conn: Connection, lesson: Lesson, topic: str, *, at: float) -> list[Lesson]:
    """Decide which side is in force after a lesson got another topic. Returns the lessons that it superseded."""
    if lesson.state is LessonState.SUPERSEDED:
        return []
    same_scope = lessons.lessons_in_scope(
        conn, lesson.policy, lesson.key, lesson.scope_kind, lesson.scope_value
    )
    superseded: list[Lesson] = []
    pinned: list[Lesson] = []
    for other in same_scope:
        if _contradicts(other, topic):
            (pinned if other.is_pinned else superseded).append(other)
    if pinned and not lesson.is_pinned:
        _supersede(conn, lesson.id, pinned[-1].id, at=at)
        return []
    for rival in superseded:
        _supersede(conn, rival.id, lesson.id, at=at)
    return superseded


def _contradicts(lesson: Lesson, topic: str) -> bool:
    """Return whether a lesson is in force and has another value for the subject of the topic."""
    if lesson.state is LessonState.SUPERSEDED:
        return False
    return lesson.subject == topic.partition("/")[0] and lesson.topic != topic


def _supersede(conn: Connection, id: str, by: str, *, at: float) -> None:
    lessons.supersede(conn, id, by)
    events.append(conn, lessons.SUPERSEDED_EVENT, id, {"by": by}, at)


def remove_evidence(
    conn: Connection,
    turns: Collection[str],
    *,
    at: float,
    only: Collection[str] | None = None,
    keep_pinned: bool = False,
) -> list[Lesson]:
    """Take these turns out of the lessons (`only`: of those with these ids).

    Returns the lessons that were deleted because no evidence is left; with `keep_pinned`, pinned ones stay. A lesson
    that keeps evidence loses the weight of the turns.
    """
    deleted = []
    c = t.lesson_turns.c
    for lesson in lessons.lessons_of_turns(conn, turns):
        if only is not None and lesson.id not in only:
            continue
        evidence = lessons.turns_of_lesson(conn, lesson.id)
        removed = [link for link in evidence if link.turn in turns]
        conn.execute(delete(t.lesson_turns).where(c.lesson == lesson.id, c.turn.in_(turns)))
        must_stay = keep_pinned and lesson.is_pinned
        if must_stay or len(removed) < len(evidence):
            rest = lesson.weight - sum(link.weight for link in removed)
            weight = max(rest, min(lesson.weight, 1.0))
            lessons.set_weight(conn, lesson.id, weight, at=lesson.reinforced_at)
        else:
            forget(conn, lesson.id, at=at)
            deleted.append(lesson)
    return deleted


def take_back(
    conn: Connection,
    turns: Sequence[str],
    reason: str,
    *,
    at: float,
    code: ReasonCode = ReasonCode.TAKEN_BACK,
) -> None:
    """Drop the turns for good, and take them out of the lessons. `code`: one of `TAKEN_BACK_CODES`."""
    remove_evidence(conn, turns, at=at)
    turn_states.take_back(conn, turns, reason, at=at, code=code)


def give_back(conn: Connection, used: Collection[str], *, at: float) -> None:
    """Reopen those of the turns that were taken back. The judge reads them again, and their lessons with them."""
    for id_ in turn_states.taken_back(conn, list(used)):
        verdict = current_verdict(conn, id_)
        is_open = verdict is not None and turn_states.transition(conn, id_, TurnState.CLOSED, at=at)
        # There is no reaction to be judged by.
        if is_open and verdict is not None and verdict.judge == PRACTICE_JUDGE:
            add_verdict(conn, verdict)


def _unpublished_practice(conn: Connection, lesson: str) -> list[str]:
    """Return the turns of practice of a lesson that were used by no version, or only by a candidate."""
    used = select(t.uses.c.turn).join(t.policies, t.policies.c.version == t.uses.c.policy)
    used = used.where(
        t.uses.c.turn == t.practice_lessons.c.turn,
        t.policies.c.state != PolicyState.CANDIDATE.value,
    )
    link = t.practice_lessons.c
    return list(
        conn.execute(select(link.turn).where(link.lesson == lesson, ~exists(used))).scalars()
    )
