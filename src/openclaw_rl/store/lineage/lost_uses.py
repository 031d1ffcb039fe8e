"""How many of a turn's uses are lost: those by versions that are not on the lineage of the head of its policy.

A turn may be trained on again when all its uses are lost. The number is kept with the turn, because a question about a
policy would otherwise have to follow its whole lineage for each turn. A use is lost when its version is not published,
was rolled back, or belongs to another policy; it counts again when its version is promoted.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, bindparam, func, select, text, update

from openclaw_rl.store import schema as t

_uses_by_versions = (
    select(func.count())
    .where(
        t.uses.c.turn == t.turns.c.id,
        t.uses.c.policy.in_(bindparam("versions", expanding=True)),
    )
    .correlate(t.turns)
    .scalar_subquery()
)
_turns_of_versions = select(t.uses.c.turn).where(
    t.uses.c.policy.in_(bindparam("versions", expanding=True))
)
_add_lost = (
    update(t.turns)
    .where(t.turns.c.id.in_(_turns_of_versions), t.turns.c.owner == bindparam("name"))
    .values(lost=t.turns.c.lost + bindparam("sign") * _uses_by_versions)
)
_recount = text(
    """
    WITH RECURSIVE line(owner, version) AS (
        SELECT found.owner, coalesce(
            (SELECT version FROM heads WHERE name = found.owner),
            (SELECT version FROM heads WHERE name = 'shared'),
            (SELECT version FROM heads WHERE name = 'default')
        )
        FROM (SELECT DISTINCT owner FROM turns WHERE uses > 0) AS found
        UNION ALL
        SELECT line.owner, policies.parent FROM line JOIN policies ON policies.version = line.version
        WHERE policies.parent IS NOT NULL
    )
    UPDATE turns SET lost = uses - (
        SELECT count(*) FROM uses JOIN line ON line.version = uses.policy
        WHERE uses.turn = turns.id AND line.owner = turns.owner
    )
    WHERE uses > 0
    """
)


def lose_uses(conn: Connection, name: str, versions: Collection[int]) -> None:
    """Count the uses by these versions as lost: they left the lineage of the head of the policy `name`."""
    conn.execute(_add_lost, {"name": name, "versions": list(versions), "sign": 1})


def regain_uses(conn: Connection, name: str, versions: Collection[int]) -> None:
    """Count the uses by these versions again: they are on the lineage of the head of the policy `name` now."""
    conn.execute(_add_lost, {"name": name, "versions": list(versions), "sign": -1})


def recount_all(conn: Connection) -> None:
    """Count the lost uses of all turns from the versions themselves, after turns went to other policies."""
    conn.execute(_recount)
