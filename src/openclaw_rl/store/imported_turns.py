"""Writes imported turns. They bypass the collect stage, as they are already linked."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from openclaw_rl.store import events, exchanges, fast_execute, reactions, turn_states, turns
from openclaw_rl.store import schema as t
from openclaw_rl.store.turn_states import Cause
from openclaw_rl.types import Feedback, Kind, Message, Reply, Request, TurnState, Verdict

MOST_ASKED = 1000
"""SQLite limits the number of variables of a statement."""
IMPORTED = "imported"
"""`how` of the reaction of a turn imported as text; also the suffix of the event of each imported exchange."""
UNSCORED = "not scored: it was imported without the log-probabilities of its tokens (`openclaw-rl data score`)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The reaction to an imported turn. `signature`: of `reaction_signature`; None if there is only feedback."""

    messages: tuple[Message, ...]
    signature: bytes | None
    source: str | None
    how: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    cause: Cause
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Reaction, feedback, verdict and drop of an imported turn, as far as they exist."""

    turn: str
    answered: Answered | None = None
    feedback: tuple[Feedback, ...] = ()
    verdict: Verdict | None = None  # `apply_outcome` sets its revision
    dropped: Dropped | None = None

    @property
    def speaks(self) -> bool:
        """Whether the turn has any of these."""
        return bool(self.answered or self.feedback or self.verdict or self.dropped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Position of a turn in its session."""

    turn: str
    session: str
    kind: Kind
    parent: str | None = None
    relation: str = "fresh"
    relation_of: str | None = None
    unlinked: str | None = None
    untrainable: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Import-related state of a turn in the store."""

    id: str
    state: TurnState
    revision: int
    imported: bool


_place = (
    update(t.turns)
    .where(t.turns.c.id == bindparam("turn"))
    .values({n: bindparam(f"new_{n}") for n in ("session", "kind", "parent", "relation", "relation_of", "unlinked")})
)
_why_not = (
    update(t.turns)
    .where(t.turns.c.id == bindparam("turn"), t.turns.c.untrainable.is_(None))
    .values(untrainable=bindparam("why"))
)
_insert_feedback = insert(t.feedback).prefix_with("OR IGNORE", dialect="sqlite")
_known = (
    select(t.turns.c.id, t.turns.c.state, t.turns.c.revision, t.exchanges.c.origin)
    .join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
    .where(t.turns.c.id.in_(bindparam("ids", expanding=True)))
)
_unscored = (
    select(t.turns.c.seq, t.turns.c.id)
    .where(t.turns.c.untrainable == UNSCORED, t.turns.c.seq > bindparam("after"))
    .order_by(t.turns.c.seq)
    .limit(bindparam("limit"))
)
_scored_reply = (
    update(t.replies)
    .where(t.replies.c.seq == bindparam("of"))
    .values(logprobs=bindparam("new_logprobs"), spans=bindparam("new_spans"))
)
_scored_exchange = update(t.exchanges).where(t.exchanges.c.seq == bindparam("of")).values(version=bindparam("by"))
_scored_turn = update(t.turns).where(t.turns.c.seq == bindparam("of")).values(untrainable=None)


def known(conn: Connection, ids: Collection[str]) -> dict[str, Known]:
    """Return the state of those turns of `ids` that are in the store, by id."""
    listed = list(ids)
    parts = [listed[at : at + MOST_ASKED] for at in range(0, len(listed), MOST_ASKED)]
    rows = [row for part in parts for row in conn.execute(_known, {"ids": part})]
    return {
        r.id: Known(id=r.id, state=TurnState(r.state), revision=r.revision, imported=r.origin is not None) for r in rows
    }


def add(conn: Connection, requests: Sequence[Request], replies: Sequence[Reply], places: Sequence[Place]) -> None:
    """Insert finished exchanges, each with an event "exchange.imported". Their outcomes go to `apply_outcome`."""
    if not requests:
        return
    exchanges.enter(conn, requests)
    exchanges.end(conn, replies)
    fast_execute.run(conn, _place, [_place_row(p) for p in places])
    if barred := [{"turn": p.turn, "why": p.untrainable} for p in places if p.untrainable]:
        fast_execute.run(conn, _why_not, barred)
    events.append_rows(conn, [events.row(f"exchange.{IMPORTED}", r.id, {}, r.finished_at) for r in replies])


def settle(conn: Connection, outcome: Outcome, standing: Known, now: float) -> bool:
    """Write those parts of an outcome that the turn does not have yet; return whether any was new.

    `standing`: current state of the turn; `now`: time of the event for a drop.
    """
    news = _hear(conn, outcome) if outcome.answered else False
    news |= _take(conn, outcome, standing.revision + news) if outcome.feedback else False
    if outcome.verdict is not None:
        then = known(conn, [outcome.turn])[outcome.turn]
        if then.state is TurnState.CLOSED:
            news |= turns.add_verdict(conn, replace(outcome.verdict, revision=then.revision))
    if outcome.dropped is not None and standing.state is not TurnState.DROPPED:
        news |= turn_states.drop(conn, outcome.turn, outcome.dropped.cause, outcome.dropped.reason, at=now)
    return news


def _hear(conn: Connection, outcome: Outcome) -> bool:
    said = outcome.answered
    if said is None or said.signature is None:
        return False
    return reactions.close(
        conn,
        outcome.turn,
        messages=said.messages,
        signature=said.signature,
        source=said.source,
        how=said.how,
        at=said.at,
    )


def _take(conn: Connection, outcome: Outcome, revision: int) -> bool:
    """Insert explicit feedback: into the revision of the turn's reaction, else as a new revision."""
    heard = revision > 0 and outcome.answered is not None and outcome.answered.signature is not None
    rows = [exchanges.feedback_row(f) | {"revision": revision if heard else None} for f in outcome.feedback]
    new = conn.execute(_insert_feedback, rows).rowcount > 0
    if heard or not new:
        return new
    at = outcome.answered.at if outcome.answered else outcome.feedback[-1].given_at
    return reactions.take_up_feedback(conn, outcome.turn, at)


def unscored(conn: Connection, *, after: int, limit: int) -> list[tuple[int, str]]:
    """Return (seq, id) of turns without log-probabilities, oldest first, after seq `after`."""
    return [(r.seq, r.id) for r in conn.execute(_unscored, {"after": after, "limit": limit})]


def score(conn: Connection, seq: int, *, logprobs: bytes, spans: bytes, version: int) -> None:
    """Store log-probabilities and spans, packed as in `rows`, that `version` computed; the turn becomes trainable."""
    conn.execute(_scored_reply, {"of": seq, "new_logprobs": logprobs, "new_spans": spans})
    conn.execute(_scored_exchange, {"of": seq, "by": version})
    conn.execute(_scored_turn, {"of": seq})


def _place_row(p: Place) -> dict[str, Any]:
    return {
        "turn": p.turn,
        "new_session": p.session,
        "new_kind": p.kind.value,
        "new_parent": p.parent,
        "new_relation": p.relation,
        "new_relation_of": p.relation_of,
        "new_unlinked": p.unlinked,
    }
