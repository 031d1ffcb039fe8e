"""The owner's yes to a service that gets texts or tokens, as events of the log."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, select

from openclaw_rl.store import events
from openclaw_rl.store.rows import from_json
from openclaw_rl.store.schema import events as event_table


def record_consent(
    conn: Connection, kind: str, address: str, purposes: Collection[str], at: float
) -> None:
    """Record that the owner agreed to send data to an address for these purposes."""
    events.append(conn, kind, address, {"purposes": sorted(purposes)}, at)


def agreed_purposes(conn: Connection, kind: str, address: str) -> frozenset[str]:
    """Return the purposes that the owner agreed to for an address."""
    query = select(event_table.c.data).where(
        event_table.c.kind == kind, event_table.c.ref == address
    )
    agreements = [from_json(row.data) for row in conn.execute(query)]
    return frozenset(purpose for data in agreements for purpose in data.get("purposes", ()))
