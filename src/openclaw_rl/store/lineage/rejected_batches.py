"""Batches whose versions were rejected: which turns were in them together."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, Select, func, select

from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store import schema as t
from openclaw_rl.types import PolicyState


def last_rejections(conn: Connection, ids: Collection[str]) -> dict[str, tuple[int, int]]:
    """Return, for each turn in a rejected batch, (the last rejected version that used it, its number of turns)."""
    last = select(t.uses.c.turn, func.max(t.uses.c.policy).label("policy")).where(
        t.uses.c.turn.in_(list(ids)), t.uses.c.policy.in_(_rejected_versions())
    )
    rejected_by = {row.turn: row.policy for row in conn.execute(last.group_by(t.uses.c.turn))}
    size = select(t.uses.c.policy, func.count().label("size")).where(
        t.uses.c.policy.in_(set(rejected_by.values()))
    )
    sizes = {row.policy: row.size for row in conn.execute(size.group_by(t.uses.c.policy))}
    return {turn: (version, sizes[version]) for turn, version in rejected_by.items()}


def refused_together(
    conn: Connection, ids: Collection[str], *, code: ReasonCode | None = None
) -> set[str]:
    """Return the turns of all rejected batches that had one of these turns. `code`: of the reason; None: any."""
    rejected = _rejected_versions()
    if code is not None:
        rejected = rejected.where(t.policies.c.reason_code == code.value)
    versions = select(t.uses.c.policy).where(
        t.uses.c.turn.in_(list(ids)), t.uses.c.policy.in_(rejected)
    )
    return set(conn.execute(select(t.uses.c.turn).where(t.uses.c.policy.in_(versions))).scalars())


def _rejected_versions() -> Select[tuple[int]]:
    return select(t.policies.c.version).where(t.policies.c.state == PolicyState.REJECTED.value)
