"""Turns that were not served here: written past collecting, for what was linked once is not linked anew."""

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
"""Ids in one question: SQLite bounds the variables of a statement."""
IMPORTED = "imported"
"""How the reaction of a turn from words was found, and the event of each exchange that came in."""
UNSCORED = "not scored: it was imported without the log-probabilities of its tokens (`openclaw-rl data score`)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What was said to a turn. `signature`: as `canon.signature_of`; None: nothing but explicit feedback."""

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
    """What became of a turn after its reply."""

    turn: str
    answered: Answered | None = None
    feedback: tuple[Feedback, ...] = ()
    verdict: Verdict | None = None  # its revision is set here
    dropped: Dropped | None = None

    @property
    def speaks(self) -> bool:
        """Something became of it."""
        return bool(self.answered or self.feedback or self.verdict or self.dropped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a turn stands in its session."""

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
    """A turn that is in the store."""

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
    """Those of `ids` that are in the store."""
    listed = list(ids)
    parts = [listed[at : at + MOST_ASKED] for at in range(0, len(listed), MOST_ASKED)]
    rows = [row for part in parts for row in conn.execute(_known, {"ids": part})]
    return {
        r.id: Known(id=r.id, state=TurnState(r.state), revision=r.revision, imported=r.origin is not None) for r in rows
    }


def add(conn: Connection, requests: Sequence[Request], replies: Sequence[Reply], places: Sequence[Place]) -> None:
    """Exchanges that have ended, an event "exchange.imported" each; equal lengths. What became of them: `settle`."""
    if not requests:
        return
    exchanges.enter(conn, requests)
    exchanges.end(conn, replies)
    fast_execute.run(conn, _place, [_place_row(p) for p in places])
    if barred := [{"turn": p.turn, "why": p.untrainable} for p in places if p.untrainable]:
        fast_execute.run(conn, _why_not, barred)
    events.append_rows(conn, [events.row(f"exchange.{IMPORTED}", r.id, {}, r.finished_at) for r in replies])


def settle(conn: Connection, outcome: Outcome, standing: Known, now: float) -> bool:
    """Reaction, feedback, verdict and end of one imported turn, as far as it has them not yet.

    False: there was nothing new. `standing`: how the turn is now; `now`: of the moves in the log.
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
    """Explicit feedback: with the reaction that was just heard, else as a revision of its own."""
    heard = revision > 0 and outcome.answered is not None and outcome.answered.signature is not None
    rows = [exchanges.feedback_row(f) | {"revision": revision if heard else None} for f in outcome.feedback]
    new = conn.execute(_insert_feedback, rows).rowcount > 0
    if heard or not new:
        return new
    at = outcome.answered.at if outcome.answered else outcome.feedback[-1].given_at
    return reactions.take_up_feedback(conn, outcome.turn, at)


def unscored(conn: Connection, *, after: int, limit: int) -> list[tuple[int, str]]:
    """(number, id) of turns that wait for their log-probabilities, oldest first, behind number `after`."""
    return [(r.seq, r.id) for r in conn.execute(_unscored, {"after": after, "limit": limit})]


def score(conn: Connection, seq: int, *, logprobs: bytes, spans: bytes, version: int) -> None:
    """The turn may train. Packed as in `arrays` and `codec`; `version`: the one that scored it."""
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
