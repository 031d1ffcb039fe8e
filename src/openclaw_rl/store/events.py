"""The append-only event log, and the cursor of each watcher in it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, select
from sqlalchemy.dialects.sqlite import insert

from openclaw_rl.errors import DamagedRow
from openclaw_rl.store.db import fast_executemany
from openclaw_rl.store.rows import from_json, from_row, naming_damage, to_json
from openclaw_rl.store.schema import cursors, events
from openclaw_rl.types import Event

log = logging.getLogger("openclaw_rl.store")

_insert = insert(events)
_after = (
    select(events)
    .where(events.c.seq > bindparam("seq"))
    .order_by(events.c.seq)
    .limit(bindparam("limit"))
)
_after_of_kinds = _after.where(events.c.kind.in_(bindparam("kinds", expanding=True)))
_last = select(func.coalesce(func.max(events.c.seq), 0))
_cursor = select(cursors.c.seq).where(cursors.c.name == bindparam("name"))
_put_cursor = insert(cursors)
_move_cursor = _put_cursor.on_conflict_do_update(
    index_elements=["name"], set_={"seq": _put_cursor.excluded.seq}
)


def event_row(kind: str, ref: str, data: Mapping[str, Any], at: float) -> dict[str, Any]:
    return {"kind": kind, "ref": ref, "data": to_json(data), "at": at}


def append(conn: Connection, kind: str, ref: str, data: Mapping[str, Any], at: float) -> None:
    """Append one event to the log. Event numbers increase in commit order."""
    append_rows(conn, [event_row(kind, ref, data, at)])


def append_rows(conn: Connection, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        fast_executemany(conn, _insert, rows)


def read_after(
    conn: Connection, seq: int, limit: int, kinds: Sequence[str] | None = None
) -> list[Event]:
    """Return up to `limit` events after event `seq`, oldest first."""
    query, values = (_after, {}) if kinds is None else (_after_of_kinds, {"kinds": list(kinds)})
    rows = conn.execute(query, {"seq": seq, "limit": limit} | values)
    return [_event_from_row(row) for row in rows]


def _event_from_row(row: Row[Any]) -> Event:
    """Build an event; one with damaged data has none."""
    try:
        with naming_damage(row.ref, f"event {row.seq}"):
            data = from_json(row.data)
    except DamagedRow as error:
        log.warning("%s: %s", row.ref, error)
        data = {}
    return from_row(Event, row, data=data)


def last_seq(conn: Connection) -> int:
    """Return the number of the newest event; 0 if the log is empty."""
    return int(conn.execute(_last).scalar_one())


def read_cursor(conn: Connection, name: str) -> int:
    """Return the number of the last event that watcher `name` has processed; initially 0."""
    return int(conn.execute(_cursor, {"name": name}).scalar() or 0)


def move_cursor(conn: Connection, name: str, seq: int) -> None:
    """Move the cursor; in the transaction of the watcher's writes, so that each event takes effect exactly once."""
    conn.execute(_move_cursor, {"name": name, "seq": seq})
