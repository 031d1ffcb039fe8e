"""Versions as lists show them: without their metrics and files, which take long to read for many versions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select, text

from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store import schema as t
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME
from openclaw_rl.store.page_tables import IS_PRESENT
from openclaw_rl.types import Kind, Policy, PolicyState


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


def newest_policies(conn: Connection, limit: int, *, name: str | None = None) -> list[Policy]:
    """Return the newest versions with all that is stored of them, oldest first. `name`: only of this policy."""
    p = t.policies.c
    query = select(p.version).order_by(p.version.desc()).limit(limit)
    if name is not None:
        query = query.where(p.name == name)
    return policies.get_many(conn, conn.execute(query).scalars().all())


def policies_from(conn: Connection, first: int) -> list[Policy]:
    """Return the versions from this number on, oldest first."""
    p = t.policies.c
    return policies.get_many(
        conn, conn.execute(select(p.version).where(p.version >= first)).scalars().all()
    )


def present_policies(conn: Connection) -> list[Policy]:
    """Return the versions whose files were not removed, oldest first; also those that never had any."""
    query = select(t.policies.c.version).where(IS_PRESENT)
    return policies.get_many(conn, conn.execute(query).scalars().all())


def count_with_files(conn: Connection) -> int:
    """Return the number of versions that have a folder whose files were not removed."""
    query = select(func.count()).select_from(t.policies)
    # Else SQLite prefers to look up each version.
    is_present = text(f"({IS_PRESENT.text})")
    return int(conn.execute(query.where(is_present, t.policies.c.path.is_not(None))).scalar_one())


def creation_times(conn: Connection, versions: Collection[int]) -> dict[int, float]:
    """Return when each of the versions was made, in seconds since the epoch."""
    p = t.policies.c
    rows = conn.execute(select(p.version, p.created_at).where(p.version.in_(list(versions))))
    return {row.version: row.created_at for row in rows}


def children_of(conn: Connection, version: int) -> list[int]:
    """Return the versions whose parent is this one, newest first."""
    p = t.policies.c
    query = select(p.version).where(p.parent == version).order_by(p.version.desc())
    return list(conn.execute(query).scalars())


def states_in_order(conn: Connection) -> dict[PolicyState, int]:
    """Return the number of versions in each state that has any, in the order in which the states were first taken."""
    p = t.policies.c
    query = select(p.state, func.count().label("number")).group_by(p.state)
    rows = conn.execute(query.order_by(func.min(p.version)))
    return {PolicyState(row.state): row.number for row in rows}


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
