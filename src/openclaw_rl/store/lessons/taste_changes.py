"""Since when turns say what a person likes: those from before a change of taste are no evidence against the new one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, func, select

from openclaw_rl.store import schema as t
from openclaw_rl.store.lessons.lessons import LessonScope, scope_owner
from openclaw_rl.types import Exchange

_lesson, _evidence = t.lessons.c, t.lesson_turns.c


@dataclass(frozen=True, slots=True, kw_only=True)
class TasteChanges:
    """`last_turns`: (key, agent, user) -> number in the store of the last turn before the change; user "": of any."""

    last_turns: Mapping[tuple[str, str, str], int]

    def is_outdated(self, exchange: Exchange) -> bool:
        """Return whether a turn is from before its person's change of taste."""
        request = exchange.request
        owners = ((request.scope, request.agent, user) for user in ("", request.user))
        return exchange.seq <= max(self.last_turns.get(owner, 0) for owner in owners)


def read_taste_changes(conn: Connection, version: int) -> TasteChanges:
    """Return the changes of taste that count for `version`.

    The last turn before one is the newest that is evidence of a lesson that another one superseded, if more than one
    turn is; and for a lesson that `version` practised, the turn that first gave it.
    """
    contrary = _turns_of_lessons(func.max(t.turns.c.seq)).where(_lesson.superseded_by.is_not(None))
    used = select(t.uses.c.turn).where(t.uses.c.policy == version)
    practised = select(t.practice_lessons.c.lesson).where(t.practice_lessons.c.turn.in_(used))
    untold = _turns_of_lessons(func.min(t.turns.c.seq)).where(_lesson.id.in_(practised))
    found: dict[tuple[str, str, str], int] = {}
    for row in [*conn.execute(contrary.having(func.count() > 1)), *conn.execute(untold)]:
        owner = (row.key, *scope_owner(row.scope_kind, row.scope_value))
        found[owner] = max(row.seq, found.get(owner, 0))
    return TasteChanges(last_turns=found)


def _turns_of_lessons(seq: Any) -> Select[Any]:
    """Select a number in the store for each lesson that is not about one question."""
    query = select(_lesson.key, _lesson.scope_kind, _lesson.scope_value, seq.label("seq"))
    query = query.join(t.lesson_turns, _evidence.lesson == _lesson.id).join(t.turns, t.turns.c.id == _evidence.turn)
    return query.where(_lesson.scope_kind != LessonScope.QUESTION.value).group_by(_lesson.id)
