"""Queries for conversations: sessions, and their turns with everything that belongs to them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, func, select

from openclaw_rl.errors import DamagedRow
from openclaw_rl.store import exchanges, turns
from openclaw_rl.store import schema as t
from openclaw_rl.store.rows import turn_from_row
from openclaw_rl.types import (
    Exchange,
    ExchangeStatus,
    Kind,
    Reaction,
    Reply,
    Turn,
    TurnState,
    Verdict,
)

log = logging.getLogger("openclaw_rl.store")
_PAGE_TURNS = 200
"""Turns read at once."""
_MAX_SOUGHT = 2000
"""Turns that are looked up one by one; for more, all turns are read in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """A conversation in the store."""

    scope: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTurn:
    """A turn with its reaction and verdict."""

    exchange: Exchange
    reply: Reply
    turn: Turn
    kind: Kind
    cause: str | None
    reaction: Reaction | None
    verdict: Verdict | None  # the one in force; None unless the turn is judged


def iter_sessions(
    conn: Connection, *, names: Sequence[str] = (), since: float | None = None
) -> Iterator[StoredSession]:
    """Yield the sessions that have a finished reply, by scope and name; rows are read lazily.

    `names`: only these sessions; `since`: only sessions with a call since then (seconds since the epoch).
    """
    for row in conn.execute(_sessions_query(names, since).execution_options(yield_per=1000)):
        yield StoredSession(scope=row.scope, name=row.session)


def count_sessions(
    conn: Connection, *, names: Sequence[str] = (), since: float | None = None
) -> int:
    """Return the number of sessions that `iter_sessions` yields."""
    return int(
        conn.execute(
            select(func.count()).select_from(_sessions_query(names, since).subquery())
        ).scalar_one()
    )


def _sessions_query(names: Sequence[str], since: float | None) -> Select[tuple[str, str]]:
    query = (
        select(t.turns.c.scope, t.turns.c.session)
        .join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
        .where(
            t.exchanges.c.status != ExchangeStatus.RUNNING.value,
            t.turns.c.kind != Kind.PRACTICE.value,
        )
        .group_by(t.turns.c.scope, t.turns.c.session)
    )
    if names:
        query = query.where(t.turns.c.session.in_(list(names)))
    return query if since is None else query.having(func.max(t.exchanges.c.admitted_at) >= since)


def sessions_of_turns(conn: Connection, turns_: Collection[str]) -> list[StoredSession]:
    """Return the sessions that have one of these turns, by scope and name."""
    c = t.turns.c
    rows = conn.execute(
        select(c.scope, c.session).distinct().where(c.id.in_(turns_)).order_by(c.scope, c.session)
    )
    return [StoredSession(scope=r.scope, name=r.session) for r in rows]


def first_scope(conn: Connection, name: str) -> str:
    """Return the scope in which a session of this name began first. Raises `ValueError` for an unknown name."""
    c = t.turns.c
    began = select(c.scope, func.min(c.seq).label("began")).where(c.session == name)
    return str(min(conn.execute(began.group_by(c.scope)), key=lambda row: int(row.began)).scope)


def newest_sessions(conn: Connection, limit: int) -> list[tuple[str, Counter[str]]]:
    """Return (name, number of turns in each state) of the sessions with main turns, newest first."""
    c = t.turns.c
    names = _newest_names(conn, limit)
    states: dict[str, Counter[str]] = {name: Counter() for name in names}
    query = select(c.session, c.state).where(c.session.in_(names), c.kind == Kind.MAIN.value)
    for row in conn.execute(query.order_by(c.seq)):
        states[row.session][row.state] += 1
    return list(states.items())


def _newest_names(conn: Connection, limit: int) -> list[str]:
    """Return the names of the sessions with the newest main turns, newest first."""
    c = t.turns.c
    names: dict[str, None] = {}
    query = select(c.seq, c.session).where(t.equals_literal(c.kind, Kind.MAIN))
    query = query.order_by(c.seq.desc()).limit(_PAGE_TURNS)
    page = conn.execute(query).all()
    while page and len(names) < limit:
        names.update(dict.fromkeys(row.session for row in page))
        page = conn.execute(query.where(c.seq < page[-1].seq)).all()
    return list(names)[:limit]


def session_turns(conn: Connection, name: str) -> list[str]:
    """Return the ids of all turns in sessions of this name, oldest first."""
    c = t.turns.c
    query = select(c.id).where(c.session == name)
    return list(conn.execute(query.order_by(c.seq)).scalars())


def oldest_turns(conn: Connection, names: Collection[str]) -> dict[str, str]:
    """Return the id of the first turn of any kind in the sessions with these names, by name."""
    c = t.turns.c
    query = select(c.session, c.id, func.min(c.seq)).where(c.session.in_(list(names)))
    return {row.session: row.id for row in conn.execute(query.group_by(c.session))}


def turns_of_session(conn: Connection, session: StoredSession) -> list[str]:
    """Return the ids of all turns in one session, oldest first."""
    c = t.turns.c
    query = select(c.id).where(c.scope == session.scope, c.session == session.name)
    return list(conn.execute(query.order_by(c.seq)).scalars())


def newest_turn_number(conn: Connection) -> int:
    """Return the number of the newest turn; 0 without turns."""
    return int(conn.execute(select(func.max(t.turns.c.seq))).scalar_one() or 0)


def first_turns(conn: Connection, names: Collection[str]) -> dict[str, str]:
    """Return the first turn of the sessions with these names, by name: the first main one if there is any."""
    c = t.turns.c
    is_main = (c.kind == Kind.MAIN.value).desc()
    query = select(c.session, c.id).where(c.session.in_(list(names)))
    first: dict[str, str] = {}
    for row in conn.execute(query.order_by(is_main, c.seq)):
        first.setdefault(row.session, row.id)
    return first


def turns_since(conn: Connection, since: float) -> list[str]:
    """Return the main turns that were asked for since then (seconds since the epoch), oldest first.

    Dropped turns that no version used are left out.
    """
    # The times are read in one pass, without looking up the turns of all others.
    newer = select(t.exchanges.c.seq).where(t.exchanges.c.admitted_at >= since)
    query = select(t.turns.c.id).where(
        t.turns.c.seq.in_(newer),
        t.equals_literal(t.turns.c.kind, Kind.MAIN),
        (t.turns.c.state != TurnState.DROPPED.value) | (t.turns.c.uses > 0),
    )
    return list(conn.execute(query.order_by(t.turns.c.seq)).scalars())


def sort_turns(conn: Connection, ids: Collection[str], *, until: int | None = None) -> list[str]:
    """Return the ids of these turns, oldest first. `until`: only turns up to this number."""
    in_order = select(t.turns.c.id).order_by(t.turns.c.seq)
    if until is not None:
        in_order = in_order.where(t.turns.c.seq <= until)
    if len(ids) <= _MAX_SOUGHT:
        return list(conn.execute(in_order.where(t.turns.c.id.in_(list(ids)))).scalars())
    return [id_ for id_ in conn.execute(in_order).scalars() if id_ in ids]


def stored_turns(
    conn: Connection, session: StoredSession, *, settled: bool = False, served_here: bool = False
) -> Iterator[StoredTurn]:
    """Yield a session's turns with finished replies, in their order.

    `settled`: only turns that no longer wait for a reaction; `served_here`: only turns that were not imported. Damaged
    turns are logged and left out.
    """
    query = _turns_query(settled=settled, served_here=served_here)
    rows = conn.execute(query, {"scope": session.scope, "session": session.name}).all()
    yield from (item for item in _load_turns(conn, rows) if item is not None)


def turns_by_session(
    conn: Connection, sessions: Iterable[StoredSession]
) -> Iterator[tuple[StoredSession, list[StoredTurn]]]:
    """Yield each session with its turns, as `stored_turns`; short sessions are read together."""
    query = _turns_query(settled=False, served_here=False)
    pages: list[tuple[StoredSession, Sequence[Row[Any]]]] = []
    number = 0
    for session in sessions:
        pages.append(
            (session, conn.execute(query, {"scope": session.scope, "session": session.name}).all())
        )
        number += len(pages[-1][1])
        if number >= _PAGE_TURNS:
            yield from _load_sessions(conn, pages)
            pages = []
            number = 0
    yield from _load_sessions(conn, pages)


def _load_sessions(
    conn: Connection, pages: Sequence[tuple[StoredSession, Sequence[Row[Any]]]]
) -> Iterator[tuple[StoredSession, list[StoredTurn]]]:
    items = _load_turns(conn, [row for _, rows in pages for row in rows])
    for session, rows in pages:
        yield session, [item for item in islice(items, len(rows)) if item is not None]


@cache
def _turns_query(*, settled: bool, served_here: bool) -> Select[Any]:
    query = (
        select(t.turns)
        .join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
        .where(t.turns.c.scope == bindparam("scope"), t.turns.c.session == bindparam("session"))
        .where(t.exchanges.c.status != ExchangeStatus.RUNNING.value)
        .order_by(t.turns.c.seq)
    )
    if settled:
        query = query.where(t.turns.c.state != TurnState.SERVED.value)
    return query.where(t.exchanges.c.origin.is_(None)) if served_here else query


def _load_turns(conn: Connection, rows: Sequence[Row[Any]]) -> Iterator[StoredTurn | None]:
    """Yield a turn for each row, a page at a time; None for a damaged one. All replies must have ended."""
    for at in range(0, len(rows), _PAGE_TURNS):
        page = rows[at : at + _PAGE_TURNS]
        try:
            yield from _load_page(conn, page)
        except DamagedRow:
            for row in page:
                yield _load_readable(conn, row)


def _load_readable(conn: Connection, row: Row[Any]) -> StoredTurn | None:
    try:
        return _load_page(conn, [row])[0]
    except DamagedRow as error:
        log.warning("%s is left out: %s", row.id, error)
        return None


def _load_page(conn: Connection, page: Sequence[Row[Any]]) -> list[StoredTurn]:
    exchanges_by_id = exchanges.get_many(conn, [row.id for row in page])
    reactions = turns.current_reactions(conn, [row.id for row in page if row.revision])
    verdicts = turns.current_verdicts(
        conn, [row.id for row in page if row.state == TurnState.JUDGED]
    )
    out = []
    for row in page:
        exchange = exchanges_by_id.get(row.id)
        if exchange is None:
            raise DamagedRow(row.id, "its request is missing")
        assert exchange.reply is not None, f"turn {row.id} has ended"
        out.append(
            StoredTurn(
                exchange=exchange,
                reply=exchange.reply,
                turn=turn_from_row(row),
                kind=Kind(row.kind),
                cause=row.cause,
                reaction=reactions.get(row.id),
                verdict=verdicts.get(row.id),
            )
        )
    return out
