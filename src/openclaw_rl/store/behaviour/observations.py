"""Observations: what a person did with a reply beside answering it, e.g. asked for another one.

`collect/behaviour.py` finds them, `reactions.record_observation` stores them, and `judge/behaviour/` decides what they
are evidence of.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, exists, select

from openclaw_rl.store import schema as t
from openclaw_rl.types import Capture, Kind, TurnState

REGENERATED = "regenerated"
EDITED = "edited"
ABANDONED = "abandoned"
COPIED = "copied"
BEHAVIOUR_JUDGE = "behaviour:"
"""The judge's name in a verdict from a signal begins with this; the name of the signal follows."""


def is_signal(judge: str) -> bool:
    """Return whether a verdict with this judge's name is from a signal."""
    return judge.startswith(BEHAVIOUR_JUDGE)


def observations_of(conn: Connection, ids: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return the observations of those turns that have any, by turn."""
    rows = conn.execute(
        select(t.observations.c.turn, t.observations.c.signal).where(t.observations.c.turn.in_(ids))
    )
    signals_by_turn: dict[str, set[str]] = {}
    for turn, signal in rows:
        signals_by_turn.setdefault(turn, set()).add(signal)
    return {turn: frozenset(signals) for turn, signals in signals_by_turn.items()}


def abandoned_turns(conn: Connection, before: float, limit: int) -> list[str]:
    """Return the last turns of conversations that nobody has answered since `before` (seconds since the epoch).

    Turns that are known to be abandoned are left out. Turns with explicit feedback alone are included, to compare both.
    """
    later = t.turns.alias("later")
    known = t.observations.c
    query = (
        select(t.turns.c.id)
        .join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
        .where(
            t.exchanges.c.finished_at < before,
            t.exchanges.c.origin.is_(None),
            t.exchanges.c.episode.is_(None),
        )
        .where(t.exchanges.c.capture == Capture.FULL.value, t.turns.c.kind == Kind.MAIN.value)
        .where(~exists().where(known.turn == t.turns.c.id, known.signal == ABANDONED))
        .where(
            ~exists().where(
                later.c.scope == t.turns.c.scope,
                later.c.session == t.turns.c.session,
                later.c.seq > t.turns.c.seq,
                later.c.kind == Kind.MAIN.value,
            )
        )
        .order_by(t.turns.c.seq)
        .limit(limit)
    )
    waiting = query.where(t.equals_literal(t.turns.c.state, TurnState.SERVED))
    scored = query.where(
        t.turns.c.id.in_(select(t.feedback.c.target).where(t.feedback.c.retracted_at.is_(None))),
        t.turns.c.state.in_((TurnState.CLOSED.value, TurnState.JUDGED.value)),
        ~exists().where(t.reactions.c.turn == t.turns.c.id, t.reactions.c.signature.is_not(None)),
    )
    return [id_ for part in (waiting, scored) for id_ in conn.execute(part).scalars()]
