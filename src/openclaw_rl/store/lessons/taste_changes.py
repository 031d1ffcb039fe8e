"""Since when turns say what a person likes: those from before a change of taste are no evidence against the new one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import CTE, Connection, Select, func, select

from openclaw_rl.store import schema as t
from openclaw_rl.store.lessons.lessons import SUPERSEDED_EVENT
from openclaw_rl.store.lessons.scopes import PRACTISED_SCOPES, is_readable_scope, scope_owner
from openclaw_rl.types import Exchange

_lesson = t.lessons.c
_evidence = t.lesson_turns.c
_Owner = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TasteChanges:
    """`last_turns`: (key, agent, user) -> number in the store of the last turn before the change; user "": of any."""

    last_turns: Mapping[_Owner, int]

    def is_outdated(self, exchange: Exchange) -> bool:
        """Return whether a turn is from before its person's change of taste."""
        request = exchange.request
        owners = ((request.scope, request.agent, user) for user in ("", request.user))
        return exchange.seq <= max(self.last_turns.get(owner, 0) for owner in owners)


NO_CHANGES = TasteChanges(last_turns={})


def read_taste_changes(conn: Connection, version: int, lineage: CTE) -> TasteChanges:
    """Return the changes of taste that count for `version`. `lineage`: the version and its ancestors.

    A lesson that another one superseded ends with the newest of several turns that were evidence of it until then: a
    word for it that came later changed nothing, and may have been a mistake. A lesson that the lineage practised begins
    with its second word, which shows that the first was no mistake; for a version that practised it itself, with the
    first, if there is no second one.
    """
    last_turns: dict[_Owner, int] = {}
    for owner, seq in (*_ends_of_lessons(conn), *_beginnings_of_lessons(conn, version, lineage)):
        last_turns[owner] = max(seq, last_turns.get(owner, 0))
    return TasteChanges(last_turns=last_turns)


def _ends_of_lessons(conn: Connection) -> Iterator[tuple[_Owner, int]]:
    event = t.events.c
    changes = select(event.ref, func.max(event.at).label("at")).where(
        event.kind == SUPERSEDED_EVENT
    )
    last_change = changes.group_by(event.ref).subquery()
    ended = _evidence_of_lessons(func.max(t.turns.c.seq)).join(
        last_change, last_change.c.ref == _lesson.id
    )
    ended = ended.where(_lesson.superseded_by.is_not(None), _evidence.at <= last_change.c.at)
    for row in _readable_rows(conn, ended.group_by(_lesson.id).having(func.count() > 1)):
        yield _owner_of(row), row.seq


def _beginnings_of_lessons(
    conn: Connection, version: int, lineage: CTE
) -> Iterator[tuple[_Owner, int]]:
    link = t.practice_lessons.c
    use = t.uses.c
    practised = select(link.lesson, use.policy).join(t.uses, use.turn == link.turn)
    by_lineage = practised.where(use.policy.in_(select(lineage.c.version))).distinct()
    policies_of: dict[str, set[int]] = {}
    for lesson, policy in conn.execute(by_lineage):
        policies_of.setdefault(lesson, set()).add(policy)
    evidence = _evidence_of_lessons(t.turns.c.seq).where(_lesson.id.in_(list(policies_of)))
    for id_, rows in groupby(
        _readable_rows(conn, evidence.order_by(_lesson.id, t.turns.c.seq)), key=lambda row: row.id
    ):
        first, *later = rows
        if later and first.superseded_by is None:
            yield _owner_of(later[0]), later[0].seq
        elif version in policies_of[id_]:
            yield _owner_of(first), first.seq


def _evidence_of_lessons(seq: Any) -> Select[Any]:
    """Select the numbers in the store of the turns that are evidence of lessons that are practised."""
    columns = (
        _lesson.id,
        _lesson.key,
        _lesson.scope_kind,
        _lesson.scope_value,
        _lesson.superseded_by,
    )
    query = select(*columns, seq.label("seq")).join(t.lesson_turns, _evidence.lesson == _lesson.id)
    query = query.join(t.turns, t.turns.c.id == _evidence.turn)
    return query.where(_lesson.scope_kind.in_([scope.value for scope in PRACTISED_SCOPES]))


def _readable_rows(conn: Connection, query: Select[Any]) -> Iterator[Any]:
    return (
        row for row in conn.execute(query) if is_readable_scope(row.scope_kind, row.scope_value)
    )


def _owner_of(row: Any) -> _Owner:
    return (row.key, *scope_owner(row.scope_kind, row.scope_value))
