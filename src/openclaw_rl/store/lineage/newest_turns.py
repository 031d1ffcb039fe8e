"""The newest turns of a policy, by which it is known how people ask."""

from __future__ import annotations

from sqlalchemy import Connection, select

from openclaw_rl.store import exchanges
from openclaw_rl.store import schema as t
from openclaw_rl.store.lineage.policy_names import OwnerFilter
from openclaw_rl.types import Exchange, Kind


def newest_exchanges(conn: Connection, owner: OwnerFilter | None, limit: int) -> list[Exchange]:
    """Return the exchanges of the newest main turns that were answered here, newest first.

    `owner`: only those of this agent, user or key. Without episodes and imported turns, and without damaged rows.
    """
    is_own = () if owner is None else (owner.condition(),)
    query = (
        select(t.turns.c.id)
        .join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
        .where(
            t.equals_literal(t.turns.c.kind, Kind.MAIN),
            t.exchanges.c.origin.is_(None),
            t.exchanges.c.episode.is_(None),
            *is_own,
        )
    )
    ids = list(conn.execute(query.order_by(t.turns.c.seq.desc()).limit(limit)).scalars())
    exchanges_by_id = exchanges.get_readable(conn, ids)
    return [exchanges_by_id[id_] for id_ in ids if id_ in exchanges_by_id]
