"""Export turns of the store as trajectories: all fields that an import restores, except defaults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, Select, bindparam, func, select, text

from openclaw_rl.store import exchanges, turns
from openclaw_rl.store import rows as codec
from openclaw_rl.store import schema as t
from openclaw_rl.trajectories.atomic_write import stem
from openclaw_rl.trajectories.schema import whole, words_of
from openclaw_rl.types import (
    Capture,
    Exchange,
    ExchangeStatus,
    Feedback,
    Kind,
    Message,
    Origin,
    Reaction,
    Reply,
    Request,
    Sampling,
    Span,
    Turn,
    TurnState,
    Verdict,
)

# A recursive query does one index seek for each scope; SELECT DISTINCT would scan all turns.
_scopes = text(
    "WITH RECURSIVE s(x) AS (SELECT min(scope) FROM turns UNION ALL "
    "SELECT (SELECT min(scope) FROM turns WHERE scope > s.x) FROM s WHERE s.x IS NOT NULL) "
    "SELECT x FROM s WHERE x IS NOT NULL"
)
_PAGE = 200
"""Turns read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A conversation in the store."""

    scope: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A turn with its reaction and verdict."""

    exchange: Exchange
    reply: Reply
    turn: Turn
    kind: Kind
    cause: str | None
    reaction: Reaction | None
    verdict: Verdict | None  # the one in force; None unless the turn is judged


def sessions(conn: Connection, *, names: Sequence[str] = (), since: float | None = None) -> Iterator[Session]:
    """Yield the sessions that have a finished reply, by scope and name; rows are read lazily.

    `names`: only these sessions; `since`: only sessions with a call since then (seconds since the epoch).
    """
    for row in conn.execute(_sessions(names, since).execution_options(yield_per=1000)):
        yield Session(scope=row.scope, name=row.session)


def count(conn: Connection, *, names: Sequence[str] = (), since: float | None = None) -> int:
    """Return the number of sessions that `iter_sessions` yields."""
    return int(conn.execute(select(func.count()).select_from(_sessions(names, since).subquery())).scalar_one())


def _sessions(names: Sequence[str], since: float | None) -> Select[tuple[str, str]]:
    query = (
        select(t.turns.c.scope, t.turns.c.session)
        .join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
        .where(t.exchanges.c.status != ExchangeStatus.RUNNING.value)
        .group_by(t.turns.c.scope, t.turns.c.session)
    )
    if names:
        query = query.where(t.turns.c.session.in_(list(names)))
    return query if since is None else query.having(func.max(t.exchanges.c.admitted_at) >= since)


def file_stem(conn: Connection, session: Session) -> str:
    """Return the file stem of a session. If several scopes have this name, all but the first append their scope."""
    turns_ = t.turns.c
    scopes = conn.execute(_scopes).scalars().all()
    rows = conn.execute(
        select(turns_.scope, func.min(turns_.seq).label("began"))
        .where(turns_.scope.in_(scopes), turns_.session == session.name)
        .group_by(turns_.scope)
    )
    first = min(rows, key=lambda row: int(row.began)).scope
    return stem(session.name) + ("" if first == session.scope else f"~{session.scope}")


def stored(conn: Connection, session: Session, *, settled: bool = False, served_here: bool = False) -> Iterator[Stored]:
    """Yield a session's turns with finished replies, in their order.

    `settled`: only turns that no longer wait for a reaction; `served_here`: only turns that were not imported.
    """
    query = _turns_of(settled=settled, served_here=served_here)
    yield from _whole(conn, conn.execute(query, {"scope": session.scope, "session": session.name}).all())


def stored_of(conn: Connection, sessions: Iterable[Session]) -> Iterator[tuple[Session, list[Stored]]]:
    """Yield each session with its turns, as `stored_turns`; short sessions are read together."""
    query = _turns_of(settled=False, served_here=False)
    held: list[tuple[Session, Sequence[Row[Any]]]] = []
    number = 0
    for session in sessions:
        held.append((session, conn.execute(query, {"scope": session.scope, "session": session.name}).all()))
        number += len(held[-1][1])
        if number >= _PAGE:
            yield from _each_whole(conn, held)
            held, number = [], 0
    yield from _each_whole(conn, held)


def _each_whole(
    conn: Connection, held: Sequence[tuple[Session, Sequence[Row[Any]]]]
) -> Iterator[tuple[Session, list[Stored]]]:
    items = _whole(conn, [row for _, rows in held for row in rows])
    for session, rows in held:
        yield session, list(islice(items, len(rows)))


@cache
def _turns_of(*, settled: bool, served_here: bool) -> Select[Any]:
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


def _whole(conn: Connection, rows: Sequence[Row[Any]]) -> Iterator[Stored]:
    """Yield a turn for each row, loading a page of rows at a time. All replies must have ended."""
    for at in range(0, len(rows), _PAGE):
        page = rows[at : at + _PAGE]
        found = exchanges.get_many(conn, [row.id for row in page])
        reactions = turns.reactions(conn, [row.id for row in page if row.revision])
        verdicts = turns.verdicts(conn, [row.id for row in page if row.state == TurnState.JUDGED])
        for row in page:
            exchange = found[row.id]
            assert exchange.reply is not None, f"turn {row.id} has ended"
            yield Stored(
                exchange=exchange,
                reply=exchange.reply,
                turn=codec.turn_of(row),
                kind=Kind(row.kind),
                cause=row.cause,
                reaction=reactions.get(row.id),
                verdict=verdicts.get(row.id),
            )


def trajectory(session: Session, items: Sequence[Stored]) -> dict[str, Any]:
    """Return the session as a trajectory in the JSON format."""
    return {"session_id": session.name, "turns": [turn_of(item) for item in items]}


def turn_of(item: Stored) -> dict[str, Any]:
    """Return one turn in the JSON format. Default values are omitted."""
    turn = item.turn
    drop = {"cause": item.cause, "reason": turn.reason} if turn.state is TurnState.DROPPED else None
    told = {
        "type": item.kind.value,
        **(_words(item) if item.exchange.request.capture is Capture.FULL else {"redacted": True}),
        **_filled(_reaction(item.reaction)),
        "trainable": item.kind is Kind.MAIN and turn.untrainable is None,
        "id": turn.id,
        **_filled({"untrainable": turn.untrainable, "parent": turn.parent}),
        **_asked(item.exchange.request),
        **_answered(item.exchange.request, item.reply),
        **_filled({"relation": None if turn.relation == "fresh" else turn.relation, "relation_of": turn.relation_of}),
        **_filled({"unlinked": turn.unlinked, "verdict": item.verdict and _verdict(item.verdict), "dropped": drop}),
    }
    return told


def _filled(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values without empty ones."""
    return {key: value for key, value in values.items() if value not in (None, (), [], {}, "")}


def _words(item: Stored) -> dict[str, Any]:
    """Return prompt and response as text, and the messages that they come from."""
    request, reply = item.exchange.request, item.reply
    return {
        **words_of(request.messages, reply.message),
        "messages": list(request.messages),
        "message": dict(reply.message) or {"role": "assistant", "content": ""},
        **_filled({"tools": list(request.tools), "template": dict(request.template)}),
    }


def _asked(request: Request) -> dict[str, Any]:
    return {
        **_filled({"agent": request.agent, "user": request.user, "sampling": sampling_of(request.sampling)}),
        "dialect": request.dialect,
        "version": request.version,
        "at": request.admitted_at,
    }


def sampling_of(sampling: Sampling) -> dict[str, Any]:
    """Return the sampling parameters that differ from the defaults."""
    plain = Sampling()
    values = {f.name: getattr(sampling, f.name) for f in fields(sampling)}
    return {name: value for name, value in values.items() if value != getattr(plain, name)}


def _answered(request: Request, reply: Reply) -> dict[str, Any]:
    done = reply.status is ExchangeStatus.DONE
    finish = {"finish": reply.finish_reason.value if reply.finish_reason else None} if done else {}
    return {
        **({"prompt_ids": request.prompt_ids.tolist()} | _sampled(request, reply) if len(request.prompt_ids) else {}),
        **({"off_policy": True} if request.origin is Origin.TEXT else {}),
        **({} if done else {"status": reply.status.value}),
        **finish,
        **_filled({"error": reply.error, "first_token_at": reply.first_token_at}),
        "finished_at": reply.finished_at,
    }


def _sampled(request: Request, reply: Reply) -> dict[str, Any]:
    r = len(reply.response_ids)
    whole = (Span(start=0, end=r, version=request.version),)
    return {
        "response_ids": reply.response_ids.tolist(),
        "logprobs": [p if np.isfinite(p) else None for p in reply.logprobs.tolist()],
        **({} if reply.mask.all() else {"mask": reply.mask.tolist()}),
        **({} if reply.spans in ((), whole) else {"spans": list(reply.spans)}),
        "identity": request.identity,
    }


def _reaction(reaction: Reaction | None) -> dict[str, Any]:
    if reaction is None:
        return {}
    found = {"how": reaction.how, **_filled({"source": reaction.source}), "at": reaction.at}
    told = {"next_state": state_of(reaction.messages), "reaction": found}
    return told | {"feedback": [_feedback(f) for f in reaction.feedback]}


def state_of(messages: Sequence[Message]) -> str | list[Message] | None:
    """Return a single plain user message as text, if it is valid Unicode; otherwise the list of messages."""
    if not messages:
        return None
    only = messages[0]
    plain = len(messages) == 1 and set(only) == {"role", "content"} and only["role"] == "user"
    words = only.get("content")
    return words if plain and isinstance(words, str) and words and whole(words) else list(messages)


def _feedback(f: Feedback) -> dict[str, Any]:
    told = {"score": f.score, "comment": f.comment, "correction": f.correction}
    return {"id": f.id, "given_at": f.given_at, **{k: v for k, v in told.items() if v is not None}}


def _verdict(v: Verdict) -> dict[str, Any]:
    return {
        "score": v.score,
        "judge": v.judge,
        "at": v.at,
        **_filled({"hints": v.hints, "votes": v.votes, "reason": v.reason}),
        **({"explicit": True} if v.explicit else {}),
    }
