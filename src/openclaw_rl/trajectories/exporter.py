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
from openclaw_rl.trajectories.atomic_write import session_stem
from openclaw_rl.trajectories.schema import is_valid_unicode, prompt_and_response
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
_scopes_query = text(
    "WITH RECURSIVE s(x) AS (SELECT min(scope) FROM turns UNION ALL "
    "SELECT (SELECT min(scope) FROM turns WHERE scope > s.x) FROM s WHERE s.x IS NOT NULL) "
    "SELECT x FROM s WHERE x IS NOT NULL"
)
_PAGE_TURNS = 200
"""Turns read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """A conversation in the store."""

    scope: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTurn:
    """A turn with its reaction and verdict."""

    exchange: Exchange
    reply: Reply
    turn: Turn
    kind: Kind
    cause: str | None
    reaction: Reaction | None
    verdict: Verdict | None  # the one in force; None unless the turn is judged


def iter_sessions(
    conn: Connection, *, names: Sequence[str] = (), since: float | None = None
) -> Iterator[StoredSession]:
    """Yield the sessions that have a finished reply, by scope and name; rows are read lazily.

    `names`: only these sessions; `since`: only sessions with a call since then (seconds since the epoch).
    """
    for row in conn.execute(_sessions_query(names, since).execution_options(yield_per=1000)):
        yield StoredSession(scope=row.scope, name=row.session)


def count_sessions(conn: Connection, *, names: Sequence[str] = (), since: float | None = None) -> int:
    """Return the number of sessions that `iter_sessions` yields."""
    return int(conn.execute(select(func.count()).select_from(_sessions_query(names, since).subquery())).scalar_one())


def _sessions_query(names: Sequence[str], since: float | None) -> Select[tuple[str, str]]:
    query = (
        select(t.turns.c.scope, t.turns.c.session)
        .join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
        .where(t.exchanges.c.status != ExchangeStatus.RUNNING.value)
        .group_by(t.turns.c.scope, t.turns.c.session)
    )
    if names:
        query = query.where(t.turns.c.session.in_(list(names)))
    return query if since is None else query.having(func.max(t.exchanges.c.admitted_at) >= since)


def file_stem(conn: Connection, session: StoredSession) -> str:
    """Return the file stem of a session. If several scopes have this name, all but the first append their scope."""
    turns_ = t.turns.c
    scopes = conn.execute(_scopes_query).scalars().all()
    rows = conn.execute(
        select(turns_.scope, func.min(turns_.seq).label("began"))
        .where(turns_.scope.in_(scopes), turns_.session == session.name)
        .group_by(turns_.scope)
    )
    first = min(rows, key=lambda row: int(row.began)).scope
    return session_stem(session.name) + ("" if first == session.scope else f"~{session.scope}")


def stored_turns(
    conn: Connection, session: StoredSession, *, settled: bool = False, served_here: bool = False
) -> Iterator[StoredTurn]:
    """Yield a session's turns with finished replies, in their order.

    `settled`: only turns that no longer wait for a reaction; `served_here`: only turns that were not imported.
    """
    query = _turns_query(settled=settled, served_here=served_here)
    yield from _load_turns(conn, conn.execute(query, {"scope": session.scope, "session": session.name}).all())


def turns_by_session(
    conn: Connection, sessions: Iterable[StoredSession]
) -> Iterator[tuple[StoredSession, list[StoredTurn]]]:
    """Yield each session with its turns, as `stored_turns`; short sessions are read together."""
    query = _turns_query(settled=False, served_here=False)
    held: list[tuple[StoredSession, Sequence[Row[Any]]]] = []
    number = 0
    for session in sessions:
        held.append((session, conn.execute(query, {"scope": session.scope, "session": session.name}).all()))
        number += len(held[-1][1])
        if number >= _PAGE_TURNS:
            yield from _load_sessions(conn, held)
            held, number = [], 0
    yield from _load_sessions(conn, held)


def _load_sessions(
    conn: Connection, held: Sequence[tuple[StoredSession, Sequence[Row[Any]]]]
) -> Iterator[tuple[StoredSession, list[StoredTurn]]]:
    items = _load_turns(conn, [row for _, rows in held for row in rows])
    for session, rows in held:
        yield session, list(islice(items, len(rows)))


@cache
def _turns_query(*, settled: bool, served_here: bool) -> Select[Any]:
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


def _load_turns(conn: Connection, rows: Sequence[Row[Any]]) -> Iterator[StoredTurn]:
    """Yield a turn for each row, loading a page of rows at a time. All replies must have ended."""
    for at in range(0, len(rows), _PAGE_TURNS):
        page = rows[at : at + _PAGE_TURNS]
        found = exchanges.get_many(conn, [row.id for row in page])
        reactions = turns.current_reactions(conn, [row.id for row in page if row.revision])
        verdicts = turns.current_verdicts(conn, [row.id for row in page if row.state == TurnState.JUDGED])
        for row in page:
            exchange = found[row.id]
            assert exchange.reply is not None, f"turn {row.id} has ended"
            yield StoredTurn(
                exchange=exchange,
                reply=exchange.reply,
                turn=codec.turn_from_row(row),
                kind=Kind(row.kind),
                cause=row.cause,
                reaction=reactions.get(row.id),
                verdict=verdicts.get(row.id),
            )


def trajectory_to_json(session: StoredSession, items: Sequence[StoredTurn]) -> dict[str, Any]:
    """Return the session as a trajectory in the JSON format."""
    return {"session_id": session.name, "turns": [turn_to_json(item) for item in items]}


def turn_to_json(item: StoredTurn) -> dict[str, Any]:
    """Return one turn in the JSON format. Default values are omitted."""
    turn = item.turn
    drop = {"cause": item.cause, "reason": turn.reason} if turn.state is TurnState.DROPPED else None
    told = {
        "type": item.kind.value,
        **(_text_fields(item) if item.exchange.request.capture is Capture.FULL else {"redacted": True}),
        **_drop_empty(_reaction_fields(item.reaction)),
        "trainable": item.kind is Kind.MAIN and turn.untrainable is None,
        "id": turn.id,
        **_drop_empty({"untrainable": turn.untrainable, "parent": turn.parent}),
        **_request_fields(item.exchange.request),
        **_reply_fields(item.exchange.request, item.reply),
        **_drop_empty(
            {"relation": None if turn.relation == "fresh" else turn.relation, "relation_of": turn.relation_of}
        ),
        **_drop_empty(
            {"unlinked": turn.unlinked, "verdict": item.verdict and _verdict_to_json(item.verdict), "dropped": drop}
        ),
    }
    return told


def _drop_empty(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values without empty ones."""
    return {key: value for key, value in values.items() if value not in (None, (), [], {}, "")}


def _text_fields(item: StoredTurn) -> dict[str, Any]:
    """Return prompt and response as text, and the messages that they come from."""
    request, reply = item.exchange.request, item.reply
    return {
        **prompt_and_response(request.messages, reply.message),
        "messages": list(request.messages),
        "message": dict(reply.message) or {"role": "assistant", "content": ""},
        **_drop_empty({"tools": list(request.tools), "template": dict(request.template)}),
    }


def _request_fields(request: Request) -> dict[str, Any]:
    return {
        **_drop_empty({"agent": request.agent, "user": request.user, "sampling": sampling_to_json(request.sampling)}),
        "dialect": request.dialect,
        "version": request.version,
        "at": request.admitted_at,
    }


def sampling_to_json(sampling: Sampling) -> dict[str, Any]:
    """Return the sampling parameters that differ from the defaults."""
    plain = Sampling()
    values = {f.name: getattr(sampling, f.name) for f in fields(sampling)}
    return {name: value for name, value in values.items() if value != getattr(plain, name)}


def _reply_fields(request: Request, reply: Reply) -> dict[str, Any]:
    done = reply.status is ExchangeStatus.DONE
    finish = {"finish": reply.finish_reason.value if reply.finish_reason else None} if done else {}
    return {
        **(
            {"prompt_ids": request.prompt_ids.tolist()} | _token_fields(request, reply)
            if len(request.prompt_ids)
            else {}
        ),
        **({"off_policy": True} if request.origin is Origin.TEXT else {}),
        **({} if done else {"status": reply.status.value}),
        **finish,
        **_drop_empty({"error": reply.error, "first_token_at": reply.first_token_at}),
        "finished_at": reply.finished_at,
    }


def _token_fields(request: Request, reply: Reply) -> dict[str, Any]:
    r = len(reply.response_ids)
    whole = (Span(start=0, end=r, version=request.version),)
    return {
        "response_ids": reply.response_ids.tolist(),
        "logprobs": [p if np.isfinite(p) else None for p in reply.logprobs.tolist()],
        **({} if reply.mask.all() else {"mask": reply.mask.tolist()}),
        **({} if reply.spans in ((), whole) else {"spans": list(reply.spans)}),
        "identity": request.identity,
    }


def _reaction_fields(reaction: Reaction | None) -> dict[str, Any]:
    if reaction is None:
        return {}
    found = {"how": reaction.how, **_drop_empty({"source": reaction.source}), "at": reaction.at}
    told = {"next_state": next_state_to_json(reaction.messages), "reaction": found}
    return told | {"feedback": [_feedback_to_json(f) for f in reaction.feedback]}


def next_state_to_json(messages: Sequence[Message]) -> str | list[Message] | None:
    """Return a single plain user message as text, if it is valid Unicode; otherwise the list of messages."""
    if not messages:
        return None
    only = messages[0]
    plain = len(messages) == 1 and set(only) == {"role", "content"} and only["role"] == "user"
    words = only.get("content")
    return words if plain and isinstance(words, str) and words and is_valid_unicode(words) else list(messages)


def _feedback_to_json(f: Feedback) -> dict[str, Any]:
    told = {"score": f.score, "comment": f.comment, "correction": f.correction}
    return {"id": f.id, "given_at": f.given_at, **{k: v for k, v in told.items() if v is not None}}


def _verdict_to_json(v: Verdict) -> dict[str, Any]:
    return {
        "score": v.score,
        "judge": v.judge,
        "at": v.at,
        **_drop_empty({"hints": v.hints, "votes": v.votes, "reason": v.reason}),
        **({"explicit": True} if v.explicit else {}),
    }
