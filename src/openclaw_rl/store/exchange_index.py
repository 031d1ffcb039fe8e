"""Look-up of earlier exchanges for linking: hashes and states, without text."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, select

from openclaw_rl.store import schema as t
from openclaw_rl.store.rows import from_row
from openclaw_rl.store.turn_states import DropReason
from openclaw_rl.types import Capture, ExchangeStatus, Kind, TurnState


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
    cause: DropReason | None = None  # why it was dropped
    previous: str | None = None  # the exchange that its client continues by id
    signatures: frozenset[bytes] = frozenset()  # of all reactions from the conversation, in any revision


_base = select(
    t.exchanges,
    t.turns.c.session.label("turn_session"),
    t.turns.c.kind.label("turn_kind"),
    t.turns.c.state,
    t.turns.c.cause,
).join(t.turns, t.turns.c.seq == t.exchanges.c.seq)


def _select_by(column: Any) -> Select[Any]:
    asked = column.in_(bindparam("values", expanding=True))
    return _base.where(t.exchanges.c.scope == bindparam("of_scope"), asked).order_by(t.exchanges.c.seq)


_by_chain, _by_own = _select_by(t.exchanges.c.reply_chain), _select_by(t.exchanges.c.reply_own)
_by_context = _select_by(t.exchanges.c.context_chain)
_by_id = _base.where(t.exchanges.c.id == bindparam("id"))
_signatures = select(t.reactions.c.turn, t.reactions.c.signature).where(
    t.reactions.c.turn.in_(bindparam("turns", expanding=True)), t.reactions.c.signature.is_not(None)
)


class ExchangeIndex:
    """Index of the exchanges in the store, on one connection. Results are in order of admission."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def by_chain(self, scope: str, chains: Collection[bytes]) -> list[ExchangeSummary]:
        """Return the exchanges whose reply has one of these chained hashes."""
        return self._find_summaries(_by_chain, scope, chains)

    def by_own(self, scope: str, owns: Collection[bytes]) -> list[ExchangeSummary]:
        """Return the exchanges whose reply has one of these own hashes."""
        return self._find_summaries(_by_own, scope, owns)

    def by_context(self, scope: str, chain: bytes) -> list[ExchangeSummary]:
        """Return the exchanges whose request has exactly this history."""
        return self._find_summaries(_by_context, scope, [chain])

    def get(self, id: str) -> ExchangeSummary | None:
        found = self._load_summaries(self._conn.execute(_by_id, {"id": id}))
        return found[0] if found else None

    def by_id(self, scope: str, id: str) -> ExchangeSummary | None:
        """Return the exchange with this id if it is in this scope."""
        found = self.get(id)
        return found if found is not None and found.scope == scope else None

    def _find_summaries(self, query: Select[Any], scope: str, values: Collection[bytes]) -> list[ExchangeSummary]:
        if not values:
            return []
        return self._load_summaries(self._conn.execute(query, {"of_scope": scope, "values": list(values)}))

    def _load_summaries(self, rows: Iterable[Row[Any]]) -> list[ExchangeSummary]:
        found = list(rows)
        signatures: dict[str, set[bytes]] = {}
        if found:
            for turn, signature in self._conn.execute(_signatures, {"turns": [row.id for row in found]}):
                signatures.setdefault(turn, set()).add(signature)
        return [_summary_from_row(row, frozenset(signatures.get(row.id, ()))) for row in found]


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
        cause=DropReason(row.cause) if row.cause else None,
        signatures=signatures,
    )
