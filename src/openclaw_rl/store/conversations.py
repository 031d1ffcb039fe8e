"""Conversations that fit a filter, newest first. The store is read from its end in steps, for a limited time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, func, or_, select, tuple_

from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store import schema as t
from openclaw_rl.store.sessions import StoredSession
from openclaw_rl.store.turns import VERDICT_PRECEDENCE, count_rows
from openclaw_rl.types import Kind, TurnState

SEARCH_SECONDS = 0.06
"""Time for one page of a search; then it says until when it has searched."""
_FIRST_STEP = 500
_LONGEST_STEP = 4000
# Turns whose words are read at once.
_WORDS_STEP = 200


class VerdictFilter(StrEnum):
    """Verdicts that a turn of the conversation has."""

    GOOD = "good"
    BAD = "bad"
    NEITHER = "neither"
    NO_OPINION = "no-opinion"
    WAITING = "waiting"


_SCORES = {VerdictFilter.GOOD: 1, VerdictFilter.BAD: -1, VerdictFilter.NEITHER: 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationFilter:
    """Conditions that one turn of a conversation meets. None, or an empty text: any.

    `since`, `until`: seconds since the epoch; `code`: why the turn was not trained on; `is_match`: of what the person
    and the model said in it, as JSON.
    """

    agent: str | None = None
    user: str | None = None
    since: float | None = None
    until: float | None = None
    verdict: VerdictFilter | None = None
    code: ReasonCode | None = None
    is_match: Callable[[bytes, bytes], bool] | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the conditions on turns and exchanges."""
        conditions = [
            t.equals_literal(t.turns.c.kind, Kind.MAIN),
            t.exchanges.c.episode.is_(None),
        ]
        if self.agent is not None:
            conditions.append(t.exchanges.c.agent == self.agent)
        if self.user is not None:
            conditions.append(t.exchanges.c.user == self.user)
        if self.code is not None:
            code = self.code.value
            conditions.append(or_(t.turns.c.cause == code, t.turns.c.untrainable_code == code))
        if self.verdict is not None:
            conditions.append(_has_verdict(self.verdict))
        return conditions


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationPage:
    """Conversations, newest first. `before`: where the next page begins; None: there is no more.

    `searched_until`: the time to which a search has looked when its time ended, in seconds since the epoch.
    """

    sessions: Sequence[StoredSession]
    before: int | None
    searched_until: float | None = None


@dataclass(slots=True, kw_only=True)
class ConversationSummary:
    """A conversation in a list. `scores`: number of turns by the score of their verdict; `waiting`: without one."""

    session: StoredSession
    first_turn: str
    agent: str
    user: str
    turns: int = 0
    last_at: float = 0.0
    waiting: int = 0
    scores: dict[int | None, int] = field(default_factory=dict)


def current_score() -> Any:
    """Return the subquery for the score of a turn's verdict in force."""
    return (
        select(t.verdicts.c.score)
        .where(t.verdicts.c.turn == t.turns.c.id)
        .order_by(*VERDICT_PRECEDENCE)
        .limit(1)
        .correlate(t.turns)
        .scalar_subquery()
    )


def _has_verdict(verdict: VerdictFilter) -> ColumnElement[bool]:
    if verdict is VerdictFilter.WAITING:
        return t.equals_literal(t.turns.c.state, TurnState.CLOSED)
    is_judged = t.turns.c.state == TurnState.JUDGED.value
    score = current_score()
    if verdict is VerdictFilter.NO_OPINION:
        return and_(is_judged, score.is_(None))
    return and_(is_judged, score == _SCORES[verdict])


def find_conversations(
    conn: Connection,
    wanted: ConversationFilter,
    *,
    before: int | None,
    limit: int,
    clock: Callable[[], float] = time.monotonic,
) -> ConversationPage:
    """Return the conversations with a turn that fits, by their newest such turn.

    `before`: only turns before this number. Conversations that the pages before this one have shown are left out.
    """
    deadline = clock() + SEARCH_SECONDS
    lowest, newest = _bounds(conn, wanted)
    end = newest if before is None else min(before, newest)
    # Session -> number of its newest turn that fits.
    sessions: dict[StoredSession, int] = {}
    for step in _read_steps(conn, wanted, lowest, end):
        newer = {session: seq for session, seq in step.sessions.items() if session not in sessions}
        if before is not None:
            for session in _sessions_from(conn, wanted, newer, before, newest):
                del newer[session]
        sessions |= newer
        if len(sessions) >= limit:
            shown = list(sessions)[:limit]
            return ConversationPage(sessions=shown, before=sessions[shown[-1]])
        if clock() > deadline and step.start > lowest:
            until = _admitted_at(conn, step.start)
            return ConversationPage(
                sessions=list(sessions), before=step.start, searched_until=until
            )
    return ConversationPage(sessions=list(sessions), before=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """Conversations with a turn from `start` on that fits, by their newest such turn."""

    start: int
    sessions: dict[StoredSession, int]


def _bounds(conn: Connection, wanted: ConversationFilter) -> tuple[int, int]:
    """Return the number of the first turn of the filter's time, and the one after the last."""
    times = []
    if wanted.since is not None:
        times.append(t.exchanges.c.admitted_at >= wanted.since)
    if wanted.until is not None:
        times.append(t.exchanges.c.admitted_at < wanted.until)
    # SQLite seeks one end of the table in a query, not both.
    ends = [
        conn.execute(select(end(t.exchanges.c.seq)).where(*times)).scalar() or 0
        for end in (func.min, func.max)
    ]
    return ends[0], ends[1] + 1


def _read_steps(
    conn: Connection, wanted: ConversationFilter, lowest: int, end: int
) -> Iterator[_Step]:
    """Yield what is found, from the newest turn back, in steps that get longer."""
    size = _FIRST_STEP if wanted.is_match is None else _WORDS_STEP
    longest = _LONGEST_STEP if wanted.is_match is None else _WORDS_STEP
    query = _select_turns(wanted).order_by(t.turns.c.seq.desc())
    while end > lowest:
        start = max(lowest, end - size)
        here = query.where(t.turns.c.seq >= start, t.turns.c.seq < end)
        yield _Step(start=start, sessions=_sessions_of(conn.execute(here), wanted))
        end = start
        size = min(2 * size, longest)


def _select_turns(wanted: ConversationFilter) -> Select[Any]:
    columns = (t.turns.c.seq, t.turns.c.scope, t.turns.c.session)
    query = select(*columns).join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
    if wanted.is_match is not None:
        query = (
            query.add_columns(t.bodies.c.messages, t.replies.c.message)
            .join(t.bodies, t.bodies.c.seq == t.turns.c.seq)
            .outerjoin(t.replies, t.replies.c.seq == t.turns.c.seq)
        )
    times = []
    if wanted.since is not None:
        times.append(t.exchanges.c.admitted_at >= wanted.since)
    if wanted.until is not None:
        times.append(t.exchanges.c.admitted_at < wanted.until)
    return query.where(*wanted.conditions(), *times)


def _sessions_of(rows: Iterable[Row[Any]], wanted: ConversationFilter) -> dict[StoredSession, int]:
    """Return the sessions of the rows that fit, with the first such row's number."""
    sessions: dict[StoredSession, int] = {}
    for row in rows:
        session = StoredSession(scope=row.scope, name=row.session)
        if session in sessions:
            continue
        if wanted.is_match is None or wanted.is_match(row.messages or b"", row.message or b""):
            sessions[session] = row.seq
    return sessions


def _sessions_from(
    conn: Connection,
    wanted: ConversationFilter,
    sessions: Collection[StoredSession],
    start: int,
    end: int,
) -> Collection[StoredSession]:
    """Return those of the sessions that have a turn that fits in a range of numbers."""
    query = _select_turns(wanted).where(t.turns.c.seq >= start, t.turns.c.seq < end)
    return _sessions_of(conn.execute(query.where(in_sessions(sessions))), wanted)


def in_sessions(sessions: Collection[StoredSession]) -> ColumnElement[bool]:
    """Return the condition that a turn is in one of the sessions."""
    pairs = [(session.scope, session.name) for session in sessions]
    # SQLite does not look up pairs in an index.
    return and_(
        t.turns.c.scope.in_({session.scope for session in sessions}),
        t.turns.c.session.in_([session.name for session in sessions]),
        tuple_(t.turns.c.scope, t.turns.c.session).in_(pairs),
    )


def _admitted_at(conn: Connection, seq: int) -> float | None:
    query = select(t.exchanges.c.admitted_at).where(t.exchanges.c.seq >= seq)
    return conn.execute(query.order_by(t.exchanges.c.seq).limit(1)).scalar()


def summarise(conn: Connection, sessions: Sequence[StoredSession]) -> list[ConversationSummary]:
    """Return the summaries of conversations that have turns, in the same order."""
    query = (
        select(
            t.turns.c.id,
            t.turns.c.scope,
            t.turns.c.session,
            t.turns.c.state,
            t.exchanges.c.agent,
            t.exchanges.c.user,
            t.exchanges.c.admitted_at,
            current_score().label("score"),
        )
        .join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
        .where(t.turns.c.kind == Kind.MAIN.value, in_sessions(sessions))
        .order_by(t.turns.c.seq)
    )
    summaries: dict[StoredSession, ConversationSummary] = {}
    for row in conn.execute(query):
        session = StoredSession(scope=row.scope, name=row.session)
        summary = summaries.get(session)
        if summary is None:
            summary = ConversationSummary(
                session=session, first_turn=row.id, agent=row.agent, user=row.user
            )
            summaries[session] = summary
        summary.turns += 1
        summary.last_at = row.admitted_at
        if row.state == TurnState.CLOSED:
            summary.waiting += 1
        if row.state == TurnState.JUDGED:
            summary.scores[row.score] = summary.scores.get(row.score, 0) + 1
    return [summaries[session] for session in sessions if session in summaries]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPlace:
    """The place of a turn in the store. `episode`: id of the one that it is part of."""

    seq: int
    session: StoredSession
    episode: str | None


def place_of_turn(conn: Connection, id: str) -> TurnPlace | None:
    """Return where a turn is; None for an unknown one."""
    query = select(t.turns.c.seq, t.turns.c.scope, t.turns.c.session, t.exchanges.c.episode)
    query = query.join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
    row = conn.execute(query.where(t.turns.c.id == id)).one_or_none()
    if row is None:
        return None
    session = StoredSession(scope=row.scope, name=row.session)
    return TurnPlace(seq=row.seq, session=session, episode=row.episode)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPart:
    """Some turns of a conversation, oldest first. `earlier`, `later`: numbers where its other parts begin."""

    ids: Sequence[str]
    earlier: int | None
    later: int | None


def session_part(
    conn: Connection, session: StoredSession, *, start: int, limit: int
) -> SessionPart:
    """Return the main turns of a conversation from a number on."""
    c = t.turns.c
    here = (c.scope == session.scope, c.session == session.name, c.kind == Kind.MAIN.value)
    query = select(c.seq, c.id).where(*here)
    rows = conn.execute(query.where(c.seq >= start).order_by(c.seq).limit(limit + 1)).all()
    earlier = conn.execute(query.where(c.seq < start).order_by(c.seq.desc()).limit(limit)).all()
    return SessionPart(
        ids=[row.id for row in rows[:limit]],
        earlier=earlier[-1].seq if earlier else None,
        later=rows[limit].seq if len(rows) > limit else None,
    )


def neighbours(conn: Connection, session: StoredSession, seq: int) -> tuple[str | None, str | None]:
    """Return the main turns before and after one in its conversation."""
    c = t.turns.c
    here = (c.scope == session.scope, c.session == session.name, c.kind == Kind.MAIN.value)
    query = select(c.id).where(*here).limit(1)
    before = conn.execute(query.where(c.seq < seq).order_by(c.seq.desc())).scalar()
    after = conn.execute(query.where(c.seq > seq).order_by(c.seq)).scalar()
    return before, after


def people_since(conn: Connection, seq: int, limit: int) -> tuple[set[str], set[str], int]:
    """Return agents and users of the newest `limit` exchanges after a number, and the number of the newest."""
    e = t.exchanges.c
    newest = select(e.agent, e.user, e.seq).where(e.seq > seq).order_by(e.seq.desc()).limit(limit)
    part = newest.subquery()
    rows = conn.execute(
        select(part.c.agent, part.c.user, func.max(part.c.seq)).group_by(part.c.agent, part.c.user)
    ).all()
    last = max((int(row[2]) for row in rows), default=seq)
    return {row.agent for row in rows}, {row.user for row in rows}, last


def count_untrained(conn: Connection) -> dict[ReasonCode, int]:
    """Return the number of main turns by the reason why they are not trained on, most frequent first."""
    is_main = t.equals_literal(t.turns.c.kind, Kind.MAIN)
    counts: dict[ReasonCode, int] = {}
    for column in (t.turns.c.cause, t.turns.c.untrainable_code):
        for value, count in count_rows(conn, column, is_main, column.is_not(None)).items():
            code = ReasonCode(value)
            counts[code] = counts.get(code, 0) + count
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
