"""The people of a home: whose key, and which user of it, asked for the newest replies."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import Connection, func, select

from openclaw_rl.store import schema as t
from openclaw_rl.store.person_scores import Person

NEWEST_REPLIES = 5000
"""Replies whose people count as those of the home."""


def count_replies(conn: Connection, since: float) -> Counter[Person]:
    """Return how many of the newest replies each person asked for, without episodes and imports.

    `since`: seconds since the epoch; only replies that were asked for from then on count.
    """
    e = t.exchanges.c
    newest = (
        select(e.scope, e.user, e.admitted_at, e.origin, e.episode)
        .order_by(e.seq.desc())
        .limit(NEWEST_REPLIES)
        .subquery()
    )
    n = newest.c
    query = select(n.scope, n.user, func.count().label("count")).where(
        n.origin.is_(None), n.episode.is_(None), n.admitted_at >= since
    )
    rows = conn.execute(query.group_by(n.scope, n.user))
    return Counter({(row.scope, row.user): row.count for row in rows})


def is_alone(conn: Connection) -> bool:
    """Return whether at most one person asked for the newest replies."""
    return len(count_replies(conn, float("-inf"))) <= 1
