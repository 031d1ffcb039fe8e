"""The turns that a lineage was trained on, and the hints that turns were judged with."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, func, select

from openclaw_rl.errors import DamagedRow
from openclaw_rl.store import schema as t
from openclaw_rl.store import turns
from openclaw_rl.store.lineage.training_queue import ancestors
from openclaw_rl.store.rows import verdict_from_row
from openclaw_rl.types import Kind, PolicyState, Use

_MAX_SOUGHT = 2000
"""Turns that are looked up one by one; for more, all uses of a lineage are read."""


class TrainedTurn(NamedTuple):
    """A turn that a version was trained on. `source`: of practice, the turn whose prompt was asked again."""

    version: int
    turn: str
    session: str
    agent: str
    source: str | None = None


def nearest_ancestors(conn: Connection, version: int, count: int) -> list[int]:
    """Return [`version`, its parent, ...], at most `count` versions, without reading those before."""
    line = ancestors(version)
    # Without an order: a recursive query gives a version before its parent, and ends at the limit.
    return list(conn.execute(select(line.c.version).limit(count)).scalars())


def lineage_until(conn: Connection, version: int, oldest: int) -> list[int]:
    """Return [`version`, its parent, ...] down to version number `oldest`, without reading those before."""
    p = t.policies
    line = (
        select(p.c.version, p.c.parent)
        .where(p.c.version == version, p.c.version >= oldest)
        .cte("line", recursive=True)
    )
    step = select(p.c.version, p.c.parent).join(line, p.c.version == line.c.parent)
    line = line.union_all(step.where(p.c.version >= oldest))
    return list(conn.execute(select(line.c.version).order_by(line.c.version.desc())).scalars())


def uses_of_lineage(conn: Connection, version: int) -> list[tuple[int, str]]:
    """Return (version, turn) of what `turns_of_lineage` returns, in its order, without reading the turns."""
    line = ancestors(version)
    uses = t.uses.c
    query = select(uses.policy, uses.turn).join(line, line.c.version == uses.policy)
    # All at once: row by row takes three times as long.
    rows = conn.execute(query.order_by(uses.policy, uses.place, uses.turn)).all()
    return [(version, turn) for version, turn in rows]


def used_by_lineage(conn: Connection, version: int, turn_ids: Collection[str]) -> set[str]:
    """Return those of the turns that `version` or one of its ancestors used."""
    return {turn for _, turn in uses_in_lineage(conn, version, turn_ids)}


def uses_in_lineage(
    conn: Connection, version: int, turn_ids: Collection[str]
) -> list[tuple[int, str]]:
    """Return (version, turn) of the uses of these turns by `version` and its ancestors."""
    if not turn_ids:
        # SQLite would read all uses.
        return []
    if len(turn_ids) > _MAX_SOUGHT:
        sought = frozenset(turn_ids)
        return [use for use in uses_of_lineage(conn, version) if use[1] in sought]
    uses = t.uses.c
    query = select(uses.policy, uses.turn).where(uses.turn.in_(list(turn_ids)))
    rows = conn.execute(query.order_by(uses.policy)).all()
    if not rows:
        return []
    lineage = frozenset(lineage_until(conn, version, rows[0].policy))
    return [(policy, turn) for policy, turn in rows if policy in lineage]


def uses_of_versions(conn: Connection, versions: Collection[int]) -> list[tuple[int, str]]:
    """Return (version, turn) of these versions: the oldest version first, each in its batch's order."""
    uses = t.uses.c
    query = select(uses.policy, uses.turn).where(uses.policy.in_(list(versions)))
    rows = conn.execute(query.order_by(uses.policy, uses.place, uses.turn)).all()
    return [(policy, turn) for policy, turn in rows]


def replayed_uses(conn: Connection, versions: Collection[int]) -> list[tuple[int, str]]:
    """Return (version, turn) of the turns that these versions were not the first to use."""
    uses = t.uses.c
    # The first use of a turn has the number 1.
    query = select(uses.policy, uses.turn).where(uses.policy.in_(list(versions)), uses.number > 1)
    return [(policy, turn) for policy, turn in conn.execute(query)]


def turns_used_before(conn: Connection, versions: Collection[int], ancestor: int) -> set[str]:
    """Return the turns of these versions that `ancestor` or one of its ancestors had used already."""
    again = {turn for _, turn in replayed_uses(conn, versions)}
    return used_by_lineage(conn, ancestor, again)


def uses_in_versions(
    conn: Connection, versions: Collection[int], turn_ids: Collection[str]
) -> list[Use]:
    """Return the uses of these turns by these versions."""
    uses = t.uses.c
    query = select(uses.policy, uses.turn, uses.number)
    sought = list(turn_ids)
    wanted = frozenset(versions)
    in_versions = []
    for start in range(0, len(sought), _MAX_SOUGHT):
        some = uses.turn.in_(sought[start : start + _MAX_SOUGHT])
        for policy, turn, number in conn.execute(query.where(some)):
            if policy in wanted:
                in_versions.append(Use(policy=policy, turn=turn, number=number))
    return in_versions


def turns_of_lineage(conn: Connection, version: int) -> list[TrainedTurn]:
    """Return the turns that `version` and its ancestors used: the oldest version first, each in its batch's order."""
    line = ancestors(version)
    query = _trained_turns().join(line, line.c.version == t.uses.c.policy)
    return [TrainedTurn(*row) for row in conn.execute(query)]


def turns_of_versions(conn: Connection, versions: Collection[int]) -> list[TrainedTurn]:
    """Return the turns that these versions used, in the order of `turns_of_lineage`."""
    query = _trained_turns().where(t.uses.c.policy.in_(list(versions)))
    return [TrainedTurn(*row) for row in conn.execute(query)]


def _trained_turns() -> Select[Any]:
    uses = t.uses.c
    exchanges = t.exchanges.c
    return (
        select(
            uses.policy, uses.turn, t.turns.c.session, exchanges.agent, t.practice_turns.c.source
        )
        .join(t.turns, t.turns.c.id == uses.turn)
        .join(t.exchanges, exchanges.seq == t.turns.c.seq)
        .outerjoin(t.practice_turns, t.practice_turns.c.turn == uses.turn)
        .order_by(uses.policy, uses.place, uses.turn)
    )


def policies_with_turns(conn: Connection, turn_ids: Collection[str]) -> dict[str, int]:
    """Return the policies that have a version, of any state, that used one of these turns: name -> the oldest one."""
    p = t.policies.c
    query = select(p.name, func.min(p.version).label("oldest"))
    query = query.join(t.uses, t.uses.c.policy == p.version).group_by(p.name)
    ids = list(turn_ids)
    oldest: dict[str, int] = {}
    for start in range(0, len(ids), _MAX_SOUGHT):
        some = t.uses.c.turn.in_(ids[start : start + _MAX_SOUGHT])
        for name, version in conn.execute(query.where(some)):
            oldest[name] = min(version, oldest.get(name, version))
    return oldest


def practised_among(conn: Connection, turn_ids: Collection[str]) -> set[str]:
    """Return those of the turns that are replies of practice."""
    practised = t.practice_turns.c.turn
    return set(conn.execute(select(practised).where(practised.in_(list(turn_ids)))).scalars())


def live_versions_of(conn: Connection, turn_ids: Collection[str]) -> list[int]:
    """Return the live versions that were trained on any of these turns, oldest first."""
    query = (
        select(t.uses.c.policy)
        .distinct()
        .join(t.policies, t.policies.c.version == t.uses.c.policy)
        .where(t.uses.c.turn.in_(list(turn_ids)), t.policies.c.state == PolicyState.LIVE.value)
    )
    return list(conn.execute(query.order_by(t.uses.c.policy)).scalars())


def turns_by_hint(conn: Connection, ids: Collection[str] | None = None) -> dict[str, list[str]]:
    """Return the main turns whose current verdict has the hint, oldest first, by hint.

    The most frequent hint comes first. Damaged verdicts are left out. `ids`: only of these turns; None: of all.
    """
    v = t.verdicts
    c = t.turns.c
    is_main = t.equals_literal(c.kind, Kind.MAIN)
    query = select(v).join(t.turns, c.id == v.c.turn).where(c.signal >= turns.HINT_SIGNAL, is_main)
    if ids is not None:
        query = query.where(c.id.in_(list(ids)))
    turns_of_hint: dict[str, list[str]] = {}
    seen: set[str] = set()
    for row in conn.execute(query.order_by(c.seq, *turns.VERDICT_PRECEDENCE)):
        if row.turn in seen:
            continue
        seen.add(row.turn)
        with contextlib.suppress(DamagedRow):
            for hint in dict.fromkeys(verdict_from_row(row).hints):
                turns_of_hint.setdefault(hint, []).append(row.turn)
    return dict(sorted(turns_of_hint.items(), key=lambda item: -len(item[1])))


def count_uses(conn: Connection, versions: Collection[int]) -> dict[int, int]:
    """Return the number of turns that each of the versions used."""
    return turns.count_rows(conn, t.uses.c.policy, t.uses.c.policy.in_(list(versions)))


def versions_of_turns(conn: Connection, ids: Collection[str]) -> dict[str, list[int]]:
    """Return the versions that used each of the turns, of any state, oldest first."""
    u = t.uses.c
    rows = conn.execute(
        select(u.turn, u.policy).where(u.turn.in_(list(ids))).order_by(u.turn, u.policy)
    )
    versions: dict[str, list[int]] = {}
    for turn, version in rows:
        versions.setdefault(turn, []).append(version)
    return versions
