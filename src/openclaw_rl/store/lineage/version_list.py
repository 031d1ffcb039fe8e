"""Versions as lists show them: without their metrics and files, which take long to read for many versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store import schema as t
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME
from openclaw_rl.types import Kind, PolicyState


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedVersion:
    """One version of a list."""

    version: int
    parent: int | None
    state: PolicyState
    reason: str | None
    reason_code: ReasonCode | None
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTurn:
    """A turn that a version was trained on. `source`: of a reply of practice, the turn whose prompt it answers."""

    turn: str
    source: str | None


def newest_versions(
    conn: Connection, name: str, *, before: int | None = None, limit: int
) -> list[ListedVersion]:
    """Return versions of a policy, newest first. `before`: only those with a lower number."""
    p = t.policies.c
    query = select(p.version, p.parent, p.state, p.reason, p.reason_code, p.created_at)
    query = query.where(p.name == name)
    if before is not None:
        query = query.where(p.version < before)
    rows = conn.execute(query.order_by(p.version.desc()).limit(limit))
    return [_read_listed(row) for row in rows]


def _read_listed(row: Any) -> ListedVersion:
    code = None if row.reason_code is None else ReasonCode(row.reason_code)
    return ListedVersion(
        version=row.version,
        parent=row.parent,
        state=PolicyState(row.state),
        reason=row.reason,
        reason_code=code,
        created_at=row.created_at,
    )


def count_by_name(conn: Connection) -> dict[str, int]:
    """Return the number of versions of each policy; the default policy is the first."""
    p = t.policies.c
    query = select(p.name, func.count().label("number")).group_by(p.name)
    rows = conn.execute(query.order_by(p.name != DEFAULT_NAME, p.name))
    return {row.name: row.number for row in rows}


def batch_turns(conn: Connection, version: int, limit: int) -> list[BatchTurn]:
    """Return the turns that a version was trained on, in the order of its batch."""
    u = t.uses.c
    query = select(u.turn, t.practice_turns.c.source)
    query = query.outerjoin(t.practice_turns, t.practice_turns.c.turn == u.turn)
    query = query.where(u.policy == version).order_by(u.place, u.turn).limit(limit)
    return [BatchTurn(turn=row.turn, source=row.source) for row in conn.execute(query)]


def answered_by_person(conn: Connection, version: int, limit: int) -> list[tuple[str, str, int]]:
    """Return (agent, user, turns) of those whom a version answered here, most turns first."""
    x = t.exchanges.c
    number = func.count().label("number")
    query = (
        select(x.agent, x.user, number)
        .join(t.turns, t.turns.c.seq == x.seq)
        .where(x.version == version, x.origin.is_(None), x.episode.is_(None))
        .where(t.equals_literal(t.turns.c.kind, Kind.MAIN))
        .group_by(x.agent, x.user)
        .order_by(number.desc(), x.agent, x.user)
    )
    return [(row.agent, row.user, row.number) for row in conn.execute(query.limit(limit))]
