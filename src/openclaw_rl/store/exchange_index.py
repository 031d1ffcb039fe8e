"""Look-up of earlier exchanges for linking: hashes and states, without text."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, func, select

from openclaw_rl.common import message_hash
from openclaw_rl.errors import DamagedRow
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store import schema as t
from openclaw_rl.store.rows import (
    from_row,
    message_from_json,
    messages_from_json,
    naming_damage,
    sampling_from_json,
)
from openclaw_rl.types import Capture, ExchangeStatus, Kind, Mark, Message, TurnState

MAX_SAME_HASH = 64
"""Newest exchanges with one hash that are compared: many conversations may begin with the same words."""
MAX_REPLIES = 64
REPLY_WINDOW = 4096
"""Replies of one kind, and exchanges of any kind, among which a summary or the turn that it quotes is searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSummary:
    """Hashes and states of one earlier exchange and its turn."""

    seq: int
    id: str
    scope: str
    agent: str
    user: str
    session_header: str | None  # X-Session-Id, when it was sent
    declared_kind: Kind | None  # X-Turn-Type, when it was sent
    session: str
    kind: Kind
    capture: Capture
    status: ExchangeStatus
    admitted_at: float
    finished_at: float | None
    context_chain: bytes | None  # 16 bytes: chain of the request's last mark
    reply_own: bytes | None  # 16 bytes
    reply_chain: bytes | None  # 16 bytes
    state: TurnState
    cause: ReasonCode | None = None  # why it was dropped
    version: int = 0  # of the policy that gave the reply
    previous: str | None = None  # the exchange that its client continues by id
    parent: str | None = None  # the turn before it in its conversation
    # Of all reactions from the conversation, in any revision.
    signatures: frozenset[bytes] = frozenset()

    def ended_by(self, at: float) -> bool:
        """Return whether the reply had ended at a time, in seconds since the epoch."""
        return self.finished_at is not None and self.finished_at <= at


_base = select(
    t.exchanges,
    t.turns.c.session.label("turn_session"),
    t.turns.c.kind.label("turn_kind"),
    t.turns.c.state,
    t.turns.c.cause,
    t.turns.c.parent,
).join(t.turns, t.turns.c.seq == t.exchanges.c.seq)


_by_seq = _base.where(t.exchanges.c.seq.in_(bindparam("seqs", expanding=True))).order_by(
    t.exchanges.c.seq
)
# SQLAlchemy has no such join. The inner query reads the index backwards, so the number of equal hashes costs nothing.
_NEWEST_WITH_HASH = (
    f"WITH asked (hash) AS (VALUES {{rows}}) SELECT e.seq FROM asked JOIN exchanges e ON e.seq IN (SELECT seq FROM "
    f"exchanges WHERE scope = ? AND {{column}} = asked.hash ORDER BY seq DESC LIMIT {MAX_SAME_HASH})"
)
_by_own_in_session = _base.where(
    t.turns.c.scope == bindparam("of_scope"),
    t.turns.c.session == bindparam("session"),
    t.exchanges.c.reply_own == bindparam("own"),
).order_by(t.exchanges.c.seq)
_by_parent = _base.where(
    t.turns.c.scope == bindparam("of_scope"),
    t.turns.c.session == bindparam("session"),
    t.turns.c.parent.is_not_distinct_from(bindparam("parent")),
).order_by(t.exchanges.c.seq)
_by_id = _base.where(t.exchanges.c.id == bindparam("id"))
_signatures = select(t.reactions.c.turn, t.reactions.c.signature).where(
    t.reactions.c.turn.in_(bindparam("turns", expanding=True)), t.reactions.c.signature.is_not(None)
)
_by_tool_call = (
    _base.join(t.reply_calls, t.reply_calls.c.seq == t.exchanges.c.seq)
    .add_columns(t.reply_calls.c.call)
    .where(
        t.reply_calls.c.scope == bindparam("of_scope"),
        t.reply_calls.c.call.in_(bindparam("values", expanding=True)),
    )
    .order_by(t.exchanges.c.seq)
)
_of_these = t.exchanges.c.id.in_(bindparam("ids", expanding=True))
_bodies = (
    select(t.exchanges.c.id).join(t.bodies, t.bodies.c.seq == t.exchanges.c.seq).where(_of_these)
)
_last_messages = _bodies.add_columns(func.substr(t.bodies.c.marks, -message_hash.MARK.size, 16))
_marks = _bodies.add_columns(t.bodies.c.marks)
_messages = _bodies.add_columns(t.bodies.c.messages).where(t.bodies.c.messages.is_not(None))
_samplings = _bodies.add_columns(t.bodies.c.sampling)
_replies = (
    select(t.exchanges.c.id, t.replies.c.message)
    .join(t.replies, t.replies.c.seq == t.exchanges.c.seq)
    .where(_of_these, t.replies.c.message.is_not(None))
)
_side_replies = (
    select(t.exchanges.c.id, t.replies.c.message)
    .join(t.exchanges, t.exchanges.c.seq == t.replies.c.seq)
    .join(t.turns, t.turns.c.seq == t.replies.c.seq)
    .where(
        t.replies.c.seq > bindparam("after"), t.replies.c.seq <= bindparam("after") + REPLY_WINDOW
    )
    .where(t.exchanges.c.scope == bindparam("of_scope"))
    .where(t.turns.c.kind == Kind.SIDE.value, t.replies.c.message.is_not(None))
    .order_by(t.replies.c.seq)
    .limit(MAX_REPLIES)
)
_main_replies_before = (
    _base.join(t.replies, t.replies.c.seq == t.exchanges.c.seq)
    .add_columns(t.replies.c.message)
    .where(
        t.exchanges.c.seq < bindparam("before"),
        t.exchanges.c.seq >= bindparam("before") - REPLY_WINDOW,
    )
    .where(t.exchanges.c.scope == bindparam("of_scope"))
    .where(t.turns.c.kind == Kind.MAIN.value, t.replies.c.message.is_not(None))
    .order_by(t.exchanges.c.seq.desc())
    .limit(MAX_REPLIES)
)


class ExchangeIndex:
    """Index of the exchanges in the store, on one connection. Results are in order of admission."""

    def __init__(self, conn: Connection, secret: bytes = b"") -> None:
        self._conn = conn
        self.secret = secret

    def by_chain(self, scope: str, chains: Collection[bytes]) -> list[ExchangeSummary]:
        """Return the exchanges whose reply has one of these chained hashes, the newest of each."""
        return self._find_summaries("reply_chain", scope, chains)

    def by_own(self, scope: str, owns: Collection[bytes]) -> list[ExchangeSummary]:
        """Return the exchanges whose reply has one of these own hashes, the newest of each."""
        return self._find_summaries("reply_own", scope, owns)

    def by_own_in_session(self, scope: str, session: str, own_hash: bytes) -> list[ExchangeSummary]:
        """Return the exchanges of a session whose reply has this own hash, also if the reply is short."""
        return self._load_summaries(
            self._conn.execute(
                _by_own_in_session, {"of_scope": scope, "session": session, "own": own_hash}
            )
        )

    def by_parent(self, scope: str, session: str, parent: str | None) -> list[ExchangeSummary]:
        """Return the exchanges of a session that continue this turn; None: those that begin the conversation."""
        return self._load_summaries(
            self._conn.execute(
                _by_parent, {"of_scope": scope, "session": session, "parent": parent}
            )
        )

    def by_context(self, scope: str, chains: Collection[bytes]) -> list[ExchangeSummary]:
        """Return the exchanges whose request has one of these history hashes, the newest of each."""
        return self._find_summaries("context_chain", scope, chains)

    def by_tool_call(self, scope: str, calls: Collection[str]) -> dict[str, list[ExchangeSummary]]:
        """Return the exchanges whose reply made the calls with these ids, by call id."""
        rows = (
            self._conn.execute(_by_tool_call, {"of_scope": scope, "values": list(calls)}).all()
            if calls
            else []
        )
        out: dict[str, list[ExchangeSummary]] = {}
        for row, summary in zip(rows, self._load_summaries(rows), strict=True):
            out.setdefault(row.call, []).append(summary)
        return out

    def last_messages(self, pasts: Sequence[ExchangeSummary]) -> dict[str, bytes]:
        """Return the own hash of the last message of each request, by exchange id."""
        return self._select_of(_last_messages, pasts)

    def message_hashes(self, past: ExchangeSummary) -> set[bytes]:
        """Return the own hashes of a request's messages."""
        marks = self._select_of(_marks, [past]).get(past.id, b"")
        return {own_hash for own_hash, _, _ in message_hash.MARK.iter_unpack(marks)}

    def marks(self, pasts: Sequence[ExchangeSummary]) -> dict[str, tuple[Mark, ...]]:
        """Return the marks of each request's messages, by exchange id."""
        rows = self._select_of(_marks, pasts)
        return {id_: message_hash.unpack_marks(packed) for id_, packed in rows.items()}

    def messages(self, past: ExchangeSummary) -> Sequence[Message]:
        """Return a request's messages; none if it is redacted."""
        messages: Sequence[Message] | None = _decode_rows(
            messages_from_json, self._select_of(_messages, [past])
        ).get(past.id)
        return messages or ()

    def stop_strings(self, pasts: Sequence[ExchangeSummary]) -> dict[str, tuple[str, ...]]:
        """Return the stop strings of each request, by exchange id."""
        return {
            id_: s.stop
            for id_, s in _decode_rows(
                sampling_from_json, self._select_of(_samplings, pasts)
            ).items()
        }

    def reply_messages(self, pasts: Sequence[ExchangeSummary]) -> dict[str, Message]:
        """Return the reply of each exchange, by exchange id; none if it is redacted."""
        return _decode_rows(message_from_json, self._select_of(_replies, pasts))

    def side_replies_after(self, past: ExchangeSummary) -> list[str]:
        """Return the texts of the first side calls after an exchange, `MAX_REPLIES` at most."""
        rows = self._conn.execute(_side_replies, {"after": past.seq, "of_scope": past.scope})
        messages = _decode_rows(message_from_json, dict(rows.all()))
        return [message_hash.visible_text(message) for message in messages.values()]

    def main_replies_before(self, scope: str, seq: int) -> list[tuple[ExchangeSummary, str]]:
        """Return the last main exchanges before a number with their texts, newest first, `MAX_REPLIES` at most."""
        rows = self._conn.execute(_main_replies_before, {"before": seq, "of_scope": scope}).all()
        messages = _decode_rows(message_from_json, {row.id: row.message for row in rows})
        return [
            (p, message_hash.visible_text(messages[p.id]))
            for p in self._load_summaries(rows)
            if p.id in messages
        ]

    def prompt_text(self, past: ExchangeSummary) -> str:
        """Return the texts of a request's messages, one after the other; empty if it is redacted."""
        return "\n".join(map(message_hash.visible_text, self.messages(past)))

    def _select_of(self, query: Select[Any], pasts: Sequence[ExchangeSummary]) -> dict[str, Any]:
        return (
            dict(self._conn.execute(query, {"ids": [p.id for p in pasts]}).all()) if pasts else {}
        )

    def get(self, id: str) -> ExchangeSummary | None:
        summaries = self._load_summaries(self._conn.execute(_by_id, {"id": id}))
        return summaries[0] if summaries else None

    def by_id(self, scope: str, id: str) -> ExchangeSummary | None:
        """Return the exchange with this id if it is in this scope."""
        summary = self.get(id)
        return summary if summary is not None and summary.scope == scope else None

    def _find_summaries(
        self, column: str, scope: str, values: Collection[bytes]
    ) -> list[ExchangeSummary]:
        """Return the newest exchanges with each of these values in an indexed column of hashes."""
        if not values:
            return []
        query = _NEWEST_WITH_HASH.format(column=column, rows=", ".join(["(?)"] * len(values)))
        seqs = [seq for (seq,) in self._conn.exec_driver_sql(query, (*values, scope))]
        return self._load_summaries(self._conn.execute(_by_seq, {"seqs": seqs})) if seqs else []

    def _load_summaries(self, rows: Iterable[Row[Any]]) -> list[ExchangeSummary]:
        listed = list(rows)
        signatures: dict[str, set[bytes]] = {}
        if listed:
            for turn, signature in self._conn.execute(
                _signatures, {"turns": [row.id for row in listed]}
            ):
                signatures.setdefault(turn, set()).add(signature)
        return [_summary_from_row(row, frozenset(signatures.get(row.id, ()))) for row in listed]


def _decode_rows(decode: Callable[[bytes], Any], rows: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the decoded values by exchange id, without damaged ones; each stage that takes such a turn reports it."""
    out = {}
    for id_, raw in rows.items():
        with contextlib.suppress(DamagedRow), naming_damage(id_, "row"):
            out[id_] = decode(raw)
    return out


def _summary_from_row(row: Row[Any], signatures: frozenset[bytes]) -> ExchangeSummary:
    return from_row(
        ExchangeSummary,
        row,
        session_header=row.session,
        declared_kind=Kind(row.kind) if row.kind else None,
        session=row.turn_session,
        kind=Kind(row.turn_kind),
        capture=Capture(row.capture),
        status=ExchangeStatus(row.status),
        state=TurnState(row.state),
        cause=ReasonCode(row.cause) if row.cause else None,
        signatures=signatures,
    )
