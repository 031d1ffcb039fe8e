"""The scores of the newest turns that a lineage answered, which the satisfaction watch compares.

A degenerate reply counts as one that did not satisfy. It has no verdict, because it is never judged; without it, a
policy that collapses would look like one that nobody talks to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    func,
    literal_column,
    or_,
    select,
    union_all,
)
from sqlalchemy.dialects.sqlite import insert as upsert

from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store import schema as t
from openclaw_rl.store.behaviour.observations import BEHAVIOUR_JUDGE, is_signal
from openclaw_rl.store.lessons.lessons import LessonState
from openclaw_rl.store.lineage.policy_names import (
    DEFAULT_NAME,
    OwnerFilter,
    PolicyOwner,
)
from openclaw_rl.store.lineage.training_queue import ancestors
from openclaw_rl.store.person_scores import Person
from openclaw_rl.store.rows import from_json, to_json
from openclaw_rl.store.trust import evidence
from openclaw_rl.store.trust.judge_trust import is_trusted_condition, read_trust
from openclaw_rl.store.turns import VERDICT_PRECEDENCE
from openclaw_rl.types import Kind

_IS_DEGENERATE = t.equals_literal(t.turns.c.cause, ReasonCode.DEGENERATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTurn:
    """A turn whose verdict is +1 or -1, or whose reply is degenerate."""

    turn: str
    version: int  # that answered it
    satisfied: bool  # the verdict is +1
    person: Person = ("", "")  # who had the turn


MAX_ANSWERED = 1000
_Placed = tuple[float, int, ScoredTurn]
"""Seconds since the epoch, number of the exchange, score."""


def newest_scores(
    conn: Connection, head: int, *, after: int, limit: int, owner: OwnerFilter | None = None
) -> list[ScoredTurn]:
    """Return the newest scored main turns that `head` or an ancestor answered here, in the order of their verdicts.

    Only turns behind exchange number `after` count. Of several verdicts on a turn, the current one counts; those of a
    judge that is not trusted for the person and of signals from behaviour do not, nor those of turns whose prompt had a
    lesson that is withdrawn since: it may be why they did not satisfy. People whose evidence is set aside do not count
    for a policy that is not theirs alone. At most `limit` turns. `owner`: only those of this agent, user or key.
    """
    e = t.exchanges.c
    is_common = None
    if owner is None or owner.may_be_several:
        is_common = evidence.is_common_condition(conn, e.scope, e.user)
    own = _own_turns(after, owner)
    own = own if is_common is None else own.where(is_common)
    newest = own.order_by(t.turns.c.seq.desc()).limit(limit)
    has_score = _has_score(conn)
    placed = [
        *_judged_turns(conn, _answered(conn, newest.where(has_score), head)),
        *_degenerate_turns(conn, _answered(conn, newest.where(_IS_DEGENERATE), head)),
    ]
    misled = _misled_turns(conn, [score.turn for *_, score in placed])
    scores = [
        score for *_, score in sorted(placed, key=lambda one: one[:2]) if score.turn not in misled
    ]
    return scores[-limit:]


def _own_turns(after: int, owner: OwnerFilter | None) -> Select[Any]:
    """Select the main turns behind exchange number `after` that were answered here."""
    e = t.exchanges.c
    return (
        select(t.turns.c.id, t.turns.c.seq, e.version, e.finished_at, e.scope, e.user)
        .join(t.exchanges, e.seq == t.turns.c.seq)
        .where(
            t.equals_literal(t.turns.c.kind, Kind.MAIN),
            t.turns.c.seq > after,
            e.origin.is_(None),
            e.episode.is_(None),
            *(() if owner is None else (owner.condition(),)),
        )
    )


def _answered(conn: Connection, newest: Select[Any], head: int) -> Select[Any]:
    """Select the newest turns that `head` or an ancestor answered. `newest`: the query without that, with its limit.

    Few versions answered them, so the lineage is followed no further than to the oldest of these: it may have tens of
    thousands. Where turns that other versions answered are among them, that is not enough, and it is followed to its
    end. The base is an ancestor of all.
    """
    version = newest.subquery().c.version
    oldest = conn.execute(select(func.min(version)).where(version > 0)).scalar()
    line = ancestors(head, above=0 if oldest is None else oldest - 1)
    beside = select(version).where(version > 0, version.not_in(select(line.c.version)))
    if conn.execute(beside.limit(1)).first() is not None:
        line = ancestors(head)
    answered_by = t.exchanges.c.version
    return newest.where(or_(answered_by == 0, answered_by.in_(select(line.c.version))))


def newest_people(
    conn: Connection, head: int, *, after: int, owner: OwnerFilter | None = None
) -> set[Person]:
    """Return whom the newest `MAX_ANSWERED` turns belong to that `head` or an ancestor answered here.

    Whether or not they have a score. Arguments as for `newest_scores`.
    """
    own = _own_turns(after, owner).order_by(t.turns.c.seq.desc()).limit(MAX_ANSWERED)
    newest = _answered(conn, own, head).subquery()
    rows = conn.execute(select(newest.c.scope, newest.c.user).distinct())
    return {(row.scope, row.user) for row in rows}


def _misled_turns(conn: Connection, turns: Sequence[str]) -> set[str]:
    """Return those of the turns whose prompt had a lesson that is withdrawn since."""
    is_withdrawn = t.lessons.c.state == LessonState.WITHDRAWN.value
    withdrawn = set(conn.execute(select(t.lessons.c.id).where(is_withdrawn)).scalars())
    if not withdrawn or not turns:
        return set()
    query = select(t.turns.c.id, t.bodies.c.lessons).join(t.bodies, t.bodies.c.seq == t.turns.c.seq)
    rows = conn.execute(query.where(t.bodies.c.lessons.is_not(None), t.turns.c.id.in_(turns)))
    return {row.id for row in rows if not withdrawn.isdisjoint(from_json(row.lessons))}


def _has_score(conn: Connection) -> ColumnElement[bool]:
    """Condition: a person or a trusted judge gave the turn a score."""
    v = t.verdicts.c
    e = t.exchanges.c
    is_said = ~v.judge.startswith(BEHAVIOUR_JUDGE)
    is_trusted = is_trusted_condition(conn, v.judge, e.scope, e.user)
    conditions = [v.turn == t.turns.c.id, v.score != 0, is_said]
    if is_trusted is not None:
        conditions.append(is_trusted)
    return select(v.turn).where(*conditions).correlate(t.turns, t.exchanges).exists()


def _judged_turns(conn: Connection, answered: Select[Any]) -> list[_Placed]:
    """Return the turns with their current scores, as of their verdicts. `answered`: turns that have any score."""
    verdicts = _current_verdicts(conn, answered)
    trust = read_trust(conn, {(row.scope, row.user) for row in verdicts})
    scored = []
    for row in verdicts:
        person = (row.scope, row.user)
        if row.score and trust.is_trusted(row.judge, person) and not is_signal(row.judge):
            score = _scored_turn(row, satisfied=row.score > 0)
            scored.append((row.at, row.seq, score))
    return scored


def _current_verdicts(conn: Connection, answered: Select[Any]) -> list[Row[Any]]:
    v = t.verdicts.c
    newest = answered.subquery()
    query = select(newest, v.score, v.judge, v.at)
    rows = conn.execute(query.join(newest, newest.c.id == v.turn).order_by(*VERDICT_PRECEDENCE))
    current: dict[str, Row[Any]] = {}
    for row in rows:
        current.setdefault(row.id, row)
    return list(current.values())


def _degenerate_turns(conn: Connection, answered: Select[Any]) -> list[_Placed]:
    """Return the turns, whose replies are degenerate, as of their ends."""
    rows = conn.execute(answered)
    return [(r.finished_at, r.seq, _scored_turn(r, satisfied=False)) for r in rows]


def _scored_turn(row: Row[Any], *, satisfied: bool) -> ScoredTurn:
    person = (row.scope, row.user)
    return ScoredTurn(turn=row.id, version=row.version, satisfied=satisfied, person=person)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCursor:
    """How far scores were read: the number of the newest verdict, and of the newest degenerate turn."""

    verdict: int = 0
    degenerate: int = 0


def names_with_scores(conn: Connection, per: PolicyOwner, *, after: ScoreCursor) -> set[str]:
    """Return the policies whose turns have a verdict, or are degenerate, behind `after` (see `newest_score`)."""
    number: ColumnElement[int] = literal_column("verdicts.rowid")
    judged = select(t.verdicts.c.turn.label("id")).where(number > after.verdict)
    failed = select(t.turns.c.id).where(_IS_DEGENERATE, t.turns.c.seq > after.degenerate)
    newer = union_all(judged, failed).subquery()
    if per == "all":
        return {DEFAULT_NAME} if conn.execute(select(newer.c.id).limit(1)).first() else set()
    query = select(t.turns.c.owner).distinct().where(t.turns.c.id.in_(select(newer.c.id)))
    return set(conn.execute(query).scalars())


_WATCHED_KEY = "satisfaction_watch"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchMark:
    """How far the satisfaction watch of a home has looked.

    `changes`: of `policy_names.count_changes`; `settings`: what it decides by.
    """

    cursor: ScoreCursor
    changes: int
    settings: Sequence[Any]


def read_watch_mark(conn: Connection) -> WatchMark | None:
    """Return how far the watch has looked; None if it never did."""
    raw = conn.scalar(select(t.meta.c.value).where(t.meta.c.key == _WATCHED_KEY))
    if raw is None:
        return None
    mark = from_json(raw)
    return WatchMark(**mark | {"cursor": ScoreCursor(**mark["cursor"])})


def record_watch_mark(conn: Connection, mark: WatchMark) -> None:
    """Store how far the watch has looked, so that after a start it looks at nothing again."""
    row = {"key": _WATCHED_KEY, "value": to_json(asdict(mark))}
    conn.execute(upsert(t.meta).values(row).on_conflict_do_update(index_elements=["key"], set_=row))


def newest_score(conn: Connection) -> ScoreCursor:
    """Return the cursor behind all scores so far."""
    verdict = conn.execute(
        select(func.max(literal_column("rowid"))).select_from(t.verdicts)
    ).scalar()
    degenerate = conn.execute(select(func.max(t.turns.c.seq)).where(_IS_DEGENERATE)).scalar()
    return ScoreCursor(verdict=int(verdict or 0), degenerate=int(degenerate or 0))
