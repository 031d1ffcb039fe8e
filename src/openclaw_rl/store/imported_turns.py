"""Writes imported turns. They bypass the collect stage, as they are already linked."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, bindparam, insert, select, update

from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store import events, exchanges, reactions, turn_states, turns
from openclaw_rl.store import schema as t
from openclaw_rl.store.db import fast_executemany
from openclaw_rl.store.rows import to_row
from openclaw_rl.types import Feedback, Kind, Message, Reply, Request, TurnState, Verdict

MAX_IDS_PER_QUERY = 1000
"""SQLite limits the number of variables of a statement."""
IMPORTED = "imported"
"""`how` of the reaction of a turn imported as text; also the suffix of the event of each imported exchange."""
UNSCORED = Reason(
    ReasonCode.UNSCORED,
    "not scored: it was imported without the log-probabilities of its tokens (`openclaw-rl data score`)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactionRecord:
    """The reaction to an imported turn. `signature`: of `reaction_signature`; None if there is only feedback."""

    messages: tuple[Message, ...]
    signature: bytes | None
    source: str | None
    how: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DropRecord:
    cause: ReasonCode
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOutcome:
    """Reaction, feedback, verdict and drop of an imported turn, as far as they exist."""

    turn: str
    reaction: ReactionRecord | None = None
    feedback: tuple[Feedback, ...] = ()
    verdict: Verdict | None = None  # `apply_outcome` sets its revision
    dropped: DropRecord | None = None

    @property
    def has_content(self) -> bool:
        """Whether the outcome is not empty."""
        return bool(self.reaction or self.feedback or self.verdict or self.dropped)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPosition:
    """Position of a turn in its session."""

    turn: str
    session: str
    kind: Kind
    parent: str | None = None
    relation: str = "fresh"
    relation_of: str | None = None
    unlinked: str | None = None
    unlinked_code: ReasonCode | None = None
    untrainable: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTurn:
    """Import-related state of a turn in the store."""

    id: str
    state: TurnState
    revision: int
    imported: bool


_POSITION = ("session", "kind", "parent", "relation", "relation_of", "unlinked", "unlinked_code")
_update_position = (
    update(t.turns)
    .where(t.turns.c.id == bindparam("turn"))
    .values({n: bindparam(f"new_{n}") for n in _POSITION})
)
_set_untrainable = (
    update(t.turns)
    .where(t.turns.c.id == bindparam("turn"), t.turns.c.untrainable.is_(None))
    .values(untrainable=bindparam("new_reason"), untrainable_code=bindparam("new_code"))
)
_insert_feedback = insert(t.feedback).prefix_with("OR IGNORE", dialect="sqlite")
_select_known = (
    select(t.turns.c.id, t.turns.c.state, t.turns.c.revision, t.exchanges.c.origin)
    .join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
    .where(t.turns.c.id.in_(bindparam("ids", expanding=True)))
)
_select_unscored = (
    select(t.turns.c.seq, t.turns.c.id)
    .where(t.turns.c.untrainable_code == UNSCORED.code.value, t.turns.c.seq > bindparam("after"))
    .order_by(t.turns.c.seq)
    .limit(bindparam("limit"))
)
_scored_reply = (
    update(t.replies)
    .where(t.replies.c.seq == bindparam("of"))
    .values(logprobs=bindparam("new_logprobs"), spans=bindparam("new_spans"))
)
_scored_exchange = (
    update(t.exchanges).where(t.exchanges.c.seq == bindparam("of")).values(version=bindparam("by"))
)
_scored_turn = (
    update(t.turns)
    .where(t.turns.c.seq == bindparam("of"))
    .values(untrainable=None, untrainable_code=None)
)


def known_turns(conn: Connection, ids: Collection[str]) -> dict[str, KnownTurn]:
    """Return the state of those turns of `ids` that are in the store, by id."""
    listed = list(ids)
    turns_by_id = {}
    for at in range(0, len(listed), MAX_IDS_PER_QUERY):
        part = listed[at : at + MAX_IDS_PER_QUERY]
        for row in conn.execute(_select_known, {"ids": part}):
            turns_by_id[row.id] = KnownTurn(
                id=row.id,
                state=TurnState(row.state),
                revision=row.revision,
                imported=row.origin is not None,
            )
    return turns_by_id


def insert_turns(
    conn: Connection,
    requests: Sequence[Request],
    replies: Sequence[Reply],
    places: Sequence[TurnPosition],
) -> None:
    """Insert finished exchanges, each with an event "exchange.imported". Their outcomes go to `apply_outcome`."""
    if not requests:
        return
    exchanges.insert_started(conn, requests)
    exchanges.insert_finished(conn, replies)
    positions = [{"turn": p.turn} | {f"new_{n}": getattr(p, n) for n in _POSITION} for p in places]
    fast_executemany(conn, _update_position, positions)
    barred = [
        {"turn": p.turn, "new_reason": p.untrainable.detail, "new_code": p.untrainable.code.value}
        for p in places
        if p.untrainable
    ]
    if barred:
        fast_executemany(conn, _set_untrainable, barred)
    events.append_rows(
        conn, [events.event_row(f"exchange.{IMPORTED}", r.id, {}, r.finished_at) for r in replies]
    )


def apply_outcome(conn: Connection, outcome: ImportOutcome, state: KnownTurn, now: float) -> bool:
    """Write those parts of an outcome that the turn does not have yet; return whether any was new.

    `state`: the turn before; `now`: time of the event for a drop.
    """
    changed = False
    if outcome.reaction:
        changed |= _record_reaction(conn, outcome)
    if outcome.feedback:
        # A new reaction is the next revision.
        changed |= _record_feedback(conn, outcome, state.revision + changed)
    if outcome.verdict is not None:
        current = known_turns(conn, [outcome.turn])[outcome.turn]
        if current.state is TurnState.CLOSED:
            verdict = replace(outcome.verdict, revision=current.revision)
            changed |= turns.add_verdict(conn, verdict)
    dropped = outcome.dropped
    if dropped is not None and state.state is not TurnState.DROPPED:
        changed |= turn_states.drop(conn, outcome.turn, dropped.cause, dropped.reason, at=now)
    return changed


def _record_reaction(conn: Connection, outcome: ImportOutcome) -> bool:
    record = outcome.reaction
    if record is None or record.signature is None:
        return False
    return reactions.record_reaction(
        conn,
        outcome.turn,
        messages=record.messages,
        signature=record.signature,
        source=record.source,
        how=record.how,
        at=record.at,
    )


def _record_feedback(conn: Connection, outcome: ImportOutcome, revision: int) -> bool:
    """Insert explicit feedback: into the revision of the turn's reaction, else as a new revision."""
    heard = revision > 0 and outcome.reaction is not None and outcome.reaction.signature is not None
    rows = [to_row(t.feedback, f, revision=revision if heard else None) for f in outcome.feedback]
    new = conn.execute(_insert_feedback, rows).rowcount > 0
    if heard or not new:
        return new
    at = outcome.reaction.at if outcome.reaction else outcome.feedback[-1].given_at
    return reactions.record_pending_feedback(conn, outcome.turn, at)


def unscored_turns(conn: Connection, *, after: int, limit: int) -> list[tuple[int, str]]:
    """Return (seq, id) of turns without log-probabilities, oldest first, after seq `after`."""
    return [(r.seq, r.id) for r in conn.execute(_select_unscored, {"after": after, "limit": limit})]


def store_scores(
    conn: Connection, seq: int, *, logprobs: bytes, spans: bytes, version: int
) -> None:
    """Store log-probabilities and spans, packed as in `rows`, that `version` computed; the turn becomes trainable."""
    conn.execute(_scored_reply, {"of": seq, "new_logprobs": logprobs, "new_spans": spans})
    conn.execute(_scored_exchange, {"of": seq, "by": version})
    conn.execute(_scored_turn, {"of": seq})
