"""How many of a turn's uses are lost: those by versions that are not on the lineage of the head of its policy.

A turn may be trained on again when all its uses are lost. The number is kept with the turn, because a question about a
policy would otherwise have to follow its whole lineage for each turn. A use is lost when its version is not published,
was rolled back, or belongs to another policy; it counts again when its version is promoted.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, and_, bindparam, func, or_, select, text, update

from openclaw_rl.store import schema as t

SHARED_HEAD = "shared"
"""Name of the head that is the parent of every policy of one's own."""

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
    .where(
        t.turns.c.id.in_(_turns_of_versions),
        or_(
            t.turns.c.owner == bindparam("name"),
            # A policy without a head of its own is answered by the shared parent.
            and_(bindparam("name") == SHARED_HEAD, t.turns.c.owner.not_in(select(t.heads.c.name))),
        ),
    )
    .values(lost=t.turns.c.lost + bindparam("sign") * _uses_by_versions)
)
# The lineage of each policy down to the first version that is on the lineage of the shared parent, and that lineage
# once: a thousand policies have all of it in common.
_RECOUNT = (
    "DROP TABLE IF EXISTS temp.shared_line",
    "DROP TABLE IF EXISTS temp.own_line",
    "CREATE TEMP TABLE shared_line (version INTEGER PRIMARY KEY)",
    "CREATE TEMP TABLE own_line (version INTEGER, owner TEXT, PRIMARY KEY (version, owner)) WITHOUT ROWID",
    """
    WITH RECURSIVE line(version) AS (
        SELECT version FROM heads WHERE name = 'shared'
        UNION ALL
        SELECT policies.parent FROM line JOIN policies ON policies.version = line.version
        WHERE policies.parent IS NOT NULL
    )
    INSERT INTO shared_line SELECT version FROM line
    """,
    """
    WITH RECURSIVE line(version, owner) AS (
        SELECT coalesce(
            (SELECT version FROM heads WHERE name = found.owner),
            (SELECT version FROM heads WHERE name = 'shared'),
            (SELECT version FROM heads WHERE name = 'default')
        ), found.owner
        FROM (SELECT DISTINCT owner FROM turns WHERE uses > 0) AS found
        UNION ALL
        SELECT policies.parent, line.owner FROM line JOIN policies ON policies.version = line.version
        WHERE policies.parent IS NOT NULL AND line.version NOT IN (SELECT version FROM shared_line)
    )
    INSERT INTO own_line SELECT version, owner FROM line
    """,
    """
    UPDATE turns SET lost = uses - (
        SELECT count(*) FROM uses
        WHERE uses.turn = turns.id AND (
            EXISTS (
                SELECT 1 FROM own_line WHERE own_line.version = uses.policy AND own_line.owner = turns.owner
            )
            OR (
                uses.policy IN (SELECT version FROM shared_line)
                AND EXISTS (
                    SELECT 1 FROM own_line
                    WHERE own_line.version IN (SELECT version FROM shared_line)
                    AND own_line.version > uses.policy AND own_line.owner = turns.owner
                )
            )
        )
    )
    WHERE uses > 0
    """,
    "DROP TABLE shared_line",
    "DROP TABLE own_line",
)


def lose_uses(conn: Connection, name: str, versions: Sequence[int]) -> None:
    """Count the uses by these versions as lost: they left the lineage of the head of the policy `name`."""
    _change_lost(conn, name, versions, 1)


def regain_uses(conn: Connection, name: str, versions: Sequence[int]) -> None:
    """Count the uses by these versions again: they are on the lineage of the head of the policy `name` now."""
    _change_lost(conn, name, versions, -1)


def _change_lost(conn: Connection, name: str, versions: Sequence[int], sign: int) -> None:
    for start in range(0, len(versions), t.VARIABLES_AT_ONCE):
        some = list(versions[start : start + t.VARIABLES_AT_ONCE])
        conn.execute(_add_lost, {"name": name, "versions": some, "sign": sign})


def recount_all(conn: Connection) -> None:
    """Count the lost uses of all turns from the versions themselves, after turns went to other policies."""
    for statement in _RECOUNT:
        conn.execute(text(statement))
