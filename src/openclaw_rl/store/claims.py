"""Which judged turns may train the child of a given head."""

from __future__ import annotations

from typing import Any

from sqlalchemy import CTE, Connection, Row, Select, select

from openclaw_rl.store import codec, exchanges, turns
from openclaw_rl.store import schema as t
from openclaw_rl.types import Exchange, JudgedTurn, Kind, TurnState

MOST_USES = 2
"""Of one turn anywhere. A turn whose policy was rejected or rolled back is tried once more, and then left alone."""


def line_of(version: int) -> CTE:
    """`version` and its ancestors."""
    p = t.policies
    line = select(p.c.version, p.c.parent).where(p.c.version == version).cte("line", recursive=True)
    return line.union_all(select(p.c.version, p.c.parent).join(line, p.c.version == line.c.parent))


def claimable(
    conn: Connection, *, head: int, limit: int, max_uses: int, need_score: bool, need_hint: bool
) -> list[JudgedTurn]:
    """Judged turns with a signal for the method, oldest first; with both needs either signal suffices.

    A turn is used at most `max_uses` times by the head and its ancestors, and at most twice anywhere. A reply that
    was cut at its token limit has no score that could train, only hints.
    """
    wanted = [s for s in (1, 2, 3) if (need_score and s & turns.SCORE) or (need_hint and s & turns.HINT)]
    ready = _ready.where(t.turns.c.signal.in_(wanted)).limit(limit)
    fresh = ready.where(t.turns.c.uses == 0)
    again = ready.where(t.turns.c.uses.between(1, MOST_USES - 1))
    if max_uses == 1:  # its only use must have been by a policy that the head does not stand on
        again = again.where(t.turns.c.id.in_(_used_beside(head)))
    ids = sorted({(row.seq, row.id) for query in (fresh, again) for row in conn.execute(query)})[:limit]
    return _read(conn, [id_ for _, id_ in ids])


_ready = (
    select(t.turns.c.seq, t.turns.c.id)
    .where(
        t.is_(t.turns.c.state, TurnState.JUDGED),
        t.turns.c.untrainable.is_(None),
        t.is_(t.turns.c.kind, Kind.MAIN),
    )
    .order_by(t.turns.c.seq)
)


def _used_beside(head: int) -> Select[tuple[str]]:
    beside = select(t.policies.c.version).where(t.policies.c.version.not_in(select(line_of(head).c.version)))
    return select(t.uses.c.turn).where(t.uses.c.policy.in_(beside))


def _read(conn: Connection, ids: list[str]) -> list[JudgedTurn]:
    found = exchanges.get_many(conn, ids)
    rows = conn.execute(select(t.turns).where(t.turns.c.id.in_(ids)).order_by(t.turns.c.seq))
    return [_judged(conn, row, found[row.id]) for row in rows]


def _judged(conn: Connection, row: Row[Any], exchange: Exchange) -> JudgedTurn:
    verdict = turns.verdict(conn, row.id)
    assert verdict is not None, f"turn {row.id} is judged without a verdict"
    return JudgedTurn(exchange=exchange, turn=codec.turn_of(row), verdict=verdict, earlier_uses=row.uses)
