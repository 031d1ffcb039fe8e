"""Which judged turns may train the child of a given head: for the first time, or once more."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import CTE, ColumnElement, Connection, Row, ScalarSelect, Select, func, select

from openclaw_rl.store import exchanges, turns
from openclaw_rl.store import rows as codec
from openclaw_rl.store import schema as t
from openclaw_rl.types import Exchange, JudgedTurn, Kind, PolicyState, TurnState

MOST_REJECTED = 2
"""Rejected candidates that used one turn again: beyond that it is no replay any more."""


def line_of(version: int) -> CTE:
    """`version` and its ancestors."""
    p = t.policies
    line = select(p.c.version, p.c.parent).where(p.c.version == version).cte("line", recursive=True)
    return line.union_all(select(p.c.version, p.c.parent).join(line, p.c.version == line.c.parent))


def claimable(
    conn: Connection, *, head: int, limit: int, max_uses: int, need_score: bool, need_hint: bool
) -> list[JudgedTurn]:
    """Fresh judged turns with a signal for the method, oldest first; with both needs either signal suffices.

    Fresh: neither the head nor an ancestor of it used the turn. What was rolled back may have, at most `max_uses` times
    anywhere; and what was rejected, as long as no two of the rejected batches with the turn were of one size: who tries
    it in ever smaller ones finds out whether it is the turn that is to blame. A reply that was cut at its token limit
    has no score that could train, only hints.
    """
    line = line_of(head)
    ready = _ready(need_score, need_hint).order_by(t.turns.c.seq).limit(limit)
    counted = t.turns.c.uses - _uses_by(_rejected()) <= max_uses
    again = ready.where(t.turns.c.uses >= 1, _beside(line), counted, _uses_on(line) == 0, _narrowed_down())
    return _claimed(conn, [ready.where(t.turns.c.uses == 0), again], limit)


def replayable(
    conn: Connection,
    *,
    head: int,
    limit: int,
    max_uses: int,
    need_score: bool,
    need_hint: bool,
    skip: Collection[str] = (),
) -> list[JudgedTurn]:
    """The newest judged turns, less those in `skip`, that the head's line used, and fewer than `max_uses` times.

    Oldest of them first. As with fresh ones, a use beside the line takes away no use on it, within the same bounds.
    """
    line = line_of(head)
    newest = _ready(need_score, need_hint).where(t.turns.c.id.not_in(list(skip)))
    newest = newest.order_by(t.turns.c.seq.desc()).limit(limit)
    once = newest.where(t.turns.c.uses.between(1, max_uses - 1), _uses_on(line) == t.turns.c.uses)
    tried = newest.where(t.turns.c.uses.between(2, max_uses), _beside(line), _uses_by(_rejected()) < MOST_REJECTED)
    return _claimed(conn, [once, tried.where(_uses_on(line).between(1, max_uses - 1))], -limit)


def rejections(conn: Connection, ids: Collection[str]) -> dict[str, tuple[int, int]]:
    """Of these turns, those that were rejected: (the last version that was, turns that it used)."""
    last = select(t.uses.c.turn, func.max(t.uses.c.policy).label("policy")).where(
        t.uses.c.turn.in_(list(ids)), t.uses.c.policy.in_(_rejected())
    )
    found = {row.turn: row.policy for row in conn.execute(last.group_by(t.uses.c.turn))}
    size = select(t.uses.c.policy, func.count().label("size")).where(t.uses.c.policy.in_(set(found.values())))
    sizes = {row.policy: row.size for row in conn.execute(size.group_by(t.uses.c.policy))}
    return {turn: (version, sizes[version]) for turn, version in found.items()}


def _ready(need_score: bool, need_hint: bool) -> Select[tuple[int, str]]:
    wanted = [s for s in (1, 2, 3) if (need_score and s & turns.SCORE) or (need_hint and s & turns.HINT)]
    return select(t.turns.c.seq, t.turns.c.id).where(
        t.is_(t.turns.c.state, TurnState.JUDGED),
        t.turns.c.untrainable.is_(None),
        t.is_(t.turns.c.kind, Kind.MAIN),
        t.turns.c.signal.in_(wanted),
    )


def _beside(line: CTE) -> ColumnElement[bool]:
    """The turn was used by a policy that is not on the line."""
    beside = select(t.policies.c.version).where(t.policies.c.version.not_in(select(line.c.version)))
    return t.turns.c.id.in_(select(t.uses.c.turn).where(t.uses.c.policy.in_(beside)))


def _rejected() -> Select[tuple[int]]:
    return select(t.policies.c.version).where(t.policies.c.state == PolicyState.REJECTED.value)


def _narrowed_down() -> ColumnElement[bool]:
    """No two rejected batches with the turn were of one size."""
    sizes = select(t.uses.c.policy, func.count().label("size")).where(t.uses.c.policy.in_(_rejected()))
    sized = sizes.group_by(t.uses.c.policy).cte("sizes")
    mine = select(func.count() - func.count(sized.c.size.distinct())).select_from(
        t.uses.join(sized, sized.c.policy == t.uses.c.policy)
    )
    return mine.where(t.uses.c.turn == t.turns.c.id).correlate(t.turns).scalar_subquery() == 0


def _uses_on(line: CTE) -> ScalarSelect[int]:
    """How often the policies of the line used the turn."""
    return _uses_by(select(line.c.version))


def _uses_by(versions: Select[tuple[int]]) -> ScalarSelect[int]:
    counted = select(func.count()).where(t.uses.c.turn == t.turns.c.id, t.uses.c.policy.in_(versions))
    return counted.correlate(t.turns).scalar_subquery()


def _claimed(conn: Connection, queries: list[Select[tuple[int, str]]], limit: int) -> list[JudgedTurn]:
    """What the queries find, by age; the oldest `limit` of it, the newest where `limit` is negative."""
    ids = sorted({(row.seq, row.id) for query in queries for row in conn.execute(query)})
    return _read(conn, [id_ for _, id_ in (ids[:limit] if limit >= 0 else ids[limit:])])


def _read(conn: Connection, ids: list[str]) -> list[JudgedTurn]:
    found = exchanges.get_many(conn, ids)
    rows = conn.execute(select(t.turns).where(t.turns.c.id.in_(ids)).order_by(t.turns.c.seq))
    return [_judged(conn, row, found[row.id]) for row in rows]


def _judged(conn: Connection, row: Row[Any], exchange: Exchange) -> JudgedTurn:
    verdict = turns.verdict(conn, row.id)
    assert verdict is not None, f"turn {row.id} is judged without a verdict"
    return JudgedTurn(exchange=exchange, turn=codec.turn_of(row), verdict=verdict, earlier_uses=row.uses)
