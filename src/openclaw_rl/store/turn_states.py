"""State transitions of turns. All go through `transition`, which allows only those of `types.TURN_TRANSITIONS`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from sqlalchemy import Connection, Update, bindparam, update

from openclaw_rl.store import events
from openclaw_rl.store.schema import turns
from openclaw_rl.types import TURN_MOVES, TurnState


class Cause(StrEnum):
    """Why a turn was dropped, as a code; the turn's `reason` explains it to a person."""

    CANCELLED = "cancelled"
    FAILED = "failed"
    DEGENERATE = "degenerate"
    SIDE = "side"
    REDACTED = "redacted"
    SESSION_DONE = "session done"
    TIMEOUT = "timeout"
    SUPERSEDED = "superseded"
    TAKEN_BACK = "taken back"


REOPENABLE = frozenset({Cause.SESSION_DONE, Cause.TIMEOUT, Cause.SUPERSEDED, Cause.REDACTED})
"""Reasons of turns dropped without evidence; late evidence reopens them. The others can never be trained on."""

_FROM = {to: tuple(sorted(s for s in TurnState if to in TURN_MOVES[s])) for to in TurnState}


def _statement(to: TurnState) -> Update:
    return (
        update(turns)
        .where(turns.c.id == bindparam("turn"), turns.c.state.in_(_FROM[to]))
        .values(state=to.value, cause=bindparam("new_cause"), reason=bindparam("new_reason"))
    )


_move = {to: _statement(to) for to in TurnState if _FROM[to]}


def move(
    conn: Connection, turn: str, to: TurnState, *, at: float, cause: Cause | None = None, reason: str | None = None
) -> bool:
    """Set the turn's state and append event "turn.<state>". Return False without a change if it is not allowed."""
    values = {"turn": turn, "new_cause": cause, "new_reason": reason}
    if conn.execute(_move[to], values).rowcount == 0:
        return False
    events.append(conn, f"turn.{to.value}", turn, {"reason": reason} if reason else {}, at)
    return True


def drop(conn: Connection, turn: str, cause: Cause, reason: str, *, at: float) -> bool:
    """Set the turn to DROPPED, if allowed. `reason` is a sentence for a person."""
    return move(conn, turn, TurnState.DROPPED, at=at, cause=cause, reason=reason)


def drop_all(conn: Connection, turns_: Sequence[str], cause: Cause, reason: str, *, at: float) -> int:
    """Drop the turns that may be dropped; return their number."""
    return sum(drop(conn, turn, cause, reason, at=at) for turn in turns_)
