"""Writes and reads exchanges: admission and finish."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sqlalchemy import Connection, bindparam, func, insert, select, update

from openclaw_rl.common import message_hash
from openclaw_rl.errors import DamagedRow
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store import events
from openclaw_rl.store import schema as t
from openclaw_rl.store.db import fast_executemany
from openclaw_rl.store.lineage.policy_names import names_of_requests, stored_user
from openclaw_rl.store.rows import (
    exchange_from_row,
    pack_ids,
    pack_logprobs,
    pack_mask,
    to_json,
    to_row,
)
from openclaw_rl.store.turn_states import degenerate_reason, drop
from openclaw_rl.types import (
    Capture,
    Exchange,
    ExchangeStatus,
    Kind,
    Reply,
    Request,
    TurnState,
)

log = logging.getLogger("openclaw_rl.store")

REDACTED = Reason(ReasonCode.REDACTED, "captured without its text and tokens (redacted)")

_insert_exchange = insert(t.exchanges)
_insert_body = insert(t.bodies)
_insert_reply = insert(t.replies)
_insert_turn = insert(t.turns)
_insert_call = insert(t.reply_calls)
_last_seq = select(func.coalesce(func.max(t.exchanges.c.seq), 0))
_update_finished = (
    update(t.exchanges)
    .where(
        t.exchanges.c.id == bindparam("which"), t.exchanges.c.status == ExchangeStatus.RUNNING.value
    )
    .values(
        status=bindparam("new_status"),
        finished_at=bindparam("new_finished_at"),
        finish_reason=bindparam("new_finish_reason"),
        reply_own=bindparam("new_reply_own"),
        reply_chain=bindparam("new_reply_chain"),
        version=func.coalesce(bindparam("new_version"), t.exchanges.c.version),
    )
)
_running = select(t.exchanges.c.id).where(
    t.equals_literal(t.exchanges.c.status, ExchangeStatus.RUNNING)
)
_select_heads = select(
    t.exchanges.c.id, t.exchanges.c.seq, t.exchanges.c.capture, t.exchanges.c.scope
).where(t.exchanges.c.id.in_(bindparam("ids", expanding=True)))
_select_exchange = (
    select(t.exchanges, *(c for table in (t.bodies, t.replies) for c in table.c if c.name != "seq"))
    .join(t.bodies, t.bodies.c.seq == t.exchanges.c.seq)
    .outerjoin(t.replies, t.replies.c.seq == t.exchanges.c.seq)
)
_get = _select_exchange.where(t.exchanges.c.id == bindparam("id"))
_get_many = _select_exchange.where(t.exchanges.c.id.in_(bindparam("ids", expanding=True)))


def admit(conn: Connection, requests: Sequence[Request]) -> None:
    """Insert each request as a RUNNING exchange and a SERVED turn, with an event "exchange.admitted"."""
    if requests:
        insert_started(conn, requests)
        events.append_rows(
            conn, [events.event_row("exchange.admitted", r.id, {}, r.admitted_at) for r in requests]
        )


def insert_started(conn: Connection, requests: Sequence[Request]) -> None:
    """Insert like `admit` but without the event, so that imported turns are not linked again."""
    first = int(conn.execute(_last_seq).scalar_one()) + 1
    numbered = list(enumerate(requests, first))
    fast_executemany(conn, _insert_exchange, [_exchange_row(seq, r) for seq, r in numbered])
    pack = message_hash.MarkPacker()
    # A generator, because bodies are large.
    bodies = (_body_row(seq, r, pack) for seq, r in numbered)
    fast_executemany(conn, _insert_body, bodies)
    owners = names_of_requests(conn, requests)
    turn_rows = [_turn_row(seq, r, owner) for (seq, r), owner in zip(numbered, owners, strict=True)]
    fast_executemany(conn, _insert_turn, turn_rows)


def finish(conn: Connection, replies: Sequence[Reply]) -> None:
    """Finish each RUNNING exchange, with an event "exchange.finished". Drop turns that can never be trained on.

    `version` becomes the one that sampled the reply; after the loss of an engine it may differ from that at admission.
    Raises `KeyError` for an exchange that was never admitted, `ValueError` for one that has already ended.
    """
    if replies:
        insert_finished(conn, replies)
        ended = [
            events.event_row("exchange.finished", r.id, {"status": r.status.value}, r.finished_at)
            for r in replies
        ]
        events.append_rows(conn, ended)


def insert_finished(conn: Connection, replies: Sequence[Reply]) -> None:
    """Finish like `finish` but without the event."""
    known = {row.id: row for row in conn.execute(_select_heads, {"ids": [r.id for r in replies]})}
    for reply in replies:
        if reply.id not in known:
            raise KeyError(reply.id)
    finished = fast_executemany(conn, _update_finished, [_finish_row(r) for r in replies])
    if finished != len(replies):
        raise ValueError(
            f"finish: expected running exchanges, got some that have ended: {[r.id for r in replies]}"
        )
    _insert_replies(conn, replies, known)


def _insert_replies(conn: Connection, replies: Sequence[Reply], known: Mapping[str, Any]) -> None:
    """Insert the rows of replies. `known`: the row of each one's request."""
    redacted = {row.id for row in known.values() if row.capture == Capture.REDACTED}
    rows = [_reply_row(known[r.id].seq, r, redacted=r.id in redacted) for r in replies]
    fast_executemany(conn, _insert_reply, rows)
    calls = [row for reply in replies for row in _call_rows(known[reply.id], reply)]
    if calls:
        fast_executemany(conn, _insert_call, calls)
    for reply in replies:
        _drop_untrainable(conn, reply, wordless=reply.id in redacted)


def _drop_untrainable(conn: Connection, reply: Reply, *, wordless: bool) -> None:
    """`wordless`: the reply is redacted, so missing tokens do not mean that it was empty."""
    at = reply.finished_at
    details = f": {reply.error}" if reply.error and not wordless else ""
    if reply.status is ExchangeStatus.FAILED:
        drop(conn, reply.id, ReasonCode.FAILED, f"the reply failed{details}", at=at)
        return
    if reply.status is ExchangeStatus.CANCELLED:
        drop(conn, reply.id, ReasonCode.CANCELLED, f"the reply was cancelled{details}", at=at)
        return
    if wordless and len(reply.response_ids) == 0:
        return
    reason = degenerate_reason(reply)
    if reason:
        drop(conn, reply.id, ReasonCode.DEGENERATE, reason, at=at)


def fail_running(conn: Connection, error: str, at: float) -> int:
    """Mark the exchanges that a crashed gateway left running as failed; return their number."""
    ids = list(conn.execute(_running).scalars())
    nothing = np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.bool_)
    finish(
        conn,
        [
            Reply(
                id=id_,
                status=ExchangeStatus.FAILED,
                message={},
                response_ids=nothing[0],
                logprobs=nothing[1],
                mask=nothing[2],
                spans=(),
                finish_reason=None,
                mark=None,
                error=error,
                finished_at=at,
            )
            for id_ in ids
        ],
    )
    return len(ids)


def get(conn: Connection, id: str) -> Exchange | None:
    """Return one exchange. Raises `DamagedRow`."""
    row = conn.execute(_get, {"id": id}).one_or_none()
    return None if row is None else exchange_from_row(row)


def get_many(conn: Connection, ids: Sequence[str]) -> dict[str, Exchange]:
    """Return the exchanges of `ids` that exist, by id. Raises `DamagedRow`."""
    return {row.id: exchange_from_row(row) for row in conn.execute(_get_many, {"ids": list(ids)})}


def get_readable(conn: Connection, ids: Sequence[str]) -> dict[str, Exchange]:
    """Return like `get_many`, but without the damaged ones, which are logged."""
    out = {}
    for row in conn.execute(_get_many, {"ids": list(ids)}):
        try:
            out[row.id] = exchange_from_row(row)
        except DamagedRow as error:
            log.warning("%s is left out: %s", row.id, error)
    return out


def _exchange_row(seq: int, r: Request) -> dict[str, Any]:
    chain = r.marks[-1].chain if r.marks else None
    return to_row(
        t.exchanges,
        r,
        seq=seq,
        status=ExchangeStatus.RUNNING.value,
        context_chain=chain,
        user=stored_user(r),
    )


def _body_row(seq: int, r: Request, pack: message_hash.MarkPacker) -> dict[str, Any]:
    row: dict[str, Any] = {"seq": seq, "marks": pack(r.marks)}
    if r.capture is Capture.REDACTED:
        sampling = replace(r.sampling, stop=(), logit_bias={}, grammar=None)
        contents = dict.fromkeys(("messages", "tools", "template", "prompt_ids", "lessons"))
        return row | contents | {"sampling": to_json(sampling)}
    return row | {
        "messages": to_json(r.messages),
        "tools": to_json(r.tools),
        "template": to_json(r.template) if r.template else None,
        "sampling": to_json(r.sampling),
        "prompt_ids": pack_ids(r.prompt_ids),
        "lessons": to_json(r.lessons) if r.lessons else None,
    }


def _turn_row(seq: int, r: Request, owner: str) -> dict[str, Any]:
    untrainable = _untrainable_reason(r)
    return {
        "seq": seq,
        "id": r.id,
        "scope": r.scope,
        "session": r.session or r.id,
        "kind": (r.kind or Kind.MAIN).value,
        "state": TurnState.SERVED.value,
        "untrainable": untrainable.detail if untrainable else None,
        "untrainable_code": untrainable.code.value if untrainable else None,
        "relation": "fresh",
        "revision": 0,
        "signal": 0,
        "uses": 0,
        "owner": owner,
        "lost": 0,
    }


def _untrainable_reason(r: Request) -> Reason | None:
    if r.capture is Capture.REDACTED:
        return REDACTED
    return r.untrainable or r.sampling.untrainable_reason()


def _finish_row(r: Reply) -> dict[str, Any]:
    return {
        "which": r.id,
        "new_status": r.status.value,
        "new_finished_at": r.finished_at,
        "new_finish_reason": r.finish_reason.value if r.finish_reason else None,
        "new_reply_own": r.mark.own if r.mark else None,
        "new_reply_chain": r.mark.chain if r.mark else None,
        "new_version": min((s.version for s in r.spans), default=None),
    }


def _call_rows(head: Any, reply: Reply) -> list[dict[str, Any]]:
    """Return a row for each tool call id of the reply; none if it is redacted."""
    calls = () if head.capture == Capture.REDACTED else reply.message.get("tool_calls") or ()
    ids = dict.fromkeys(call["id"] for call in calls if call.get("id"))
    return [{"seq": head.seq, "call": id_, "scope": head.scope} for id_ in ids]


def _reply_row(seq: int, r: Reply, *, redacted: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "seq": seq,
        "spans": to_json(r.spans),
        "mark": message_hash.pack_marks([r.mark]) if r.mark else None,
        "first_token_at": r.first_token_at,
    }
    if redacted:
        contents = ("message", "response_ids", "logprobs", "mask", "error")
        return row | dict.fromkeys(contents)
    return row | {
        "message": to_json(r.message),
        "response_ids": pack_ids(r.response_ids),
        "logprobs": pack_logprobs(r.logprobs),
        "mask": pack_mask(r.mask),
        "error": r.error,
    }
