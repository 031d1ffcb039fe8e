"""The policies of lessons when `policy.per` of a home changes: each lesson goes where its prompts go from then on."""

from __future__ import annotations

from sqlalchemy import Connection, select

from openclaw_rl.store import schema as t
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lessons.scopes import LessonScope
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import PolicyOwner, policy_name


def move_lessons(conn: Connection, per: PolicyOwner, *, at: float) -> None:
    """Give each lesson to the policy of its prompts under this setting, or it would be in no prompt any more.

    A learned lesson stays so if the head of that policy, or an ancestor of it, is the version that learned it.
    """
    for lesson in lessons.list_lessons(conn):
        agent, user = _owner_of(conn, lesson)
        name = policy_name(per, agent=agent, user=user, key=lesson.key)
        if name == lesson.policy:
            continue
        lessons.set_policy(conn, lesson.id, name)
        lineage = policies.lineage(conn, policies.head(conn, name).version)
        if lesson.state is LessonState.LEARNED and lesson.learned_version not in lineage:
            lessons.mark_active(conn, lesson.id)
            lessons.renew(conn, lesson.id, at=at)


def _owner_of(conn: Connection, lesson: Lesson) -> tuple[str, str]:
    """Return the (agent, user) whose prompts a lesson is for.

    Of a conversation and of a question, those of the turn that gave it last.
    """
    if lesson.scope_kind not in (LessonScope.SESSION, LessonScope.QUESTION):
        return lesson.owner
    query = select(t.exchanges.c.agent, t.exchanges.c.user).join(
        t.turns, t.turns.c.seq == t.exchanges.c.seq
    )
    query = query.join(t.lesson_turns, t.lesson_turns.c.turn == t.turns.c.id)
    newest = (
        query.where(t.lesson_turns.c.lesson == lesson.id)
        .order_by(t.lesson_turns.c.at.desc())
        .limit(1)
    )
    row = conn.execute(newest).one_or_none()
    return ("", "") if row is None else (row.agent, row.user)
