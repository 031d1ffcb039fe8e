"""The one place where a turn changes its state. Only the moves of `types.TURN_MOVES` ever happen."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from sqlalchemy import Connection, Update, bindparam, update

from openclaw_rl.store import events
from openclaw_rl.store.schema import turns
from openclaw_rl.types import TURN_MOVES, TurnState


class Cause(StrEnum):
    """Why a turn was dropped, for programs; its `reason` says it to a person."""

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
"""Dropped for want of evidence: late evidence brings these turns back. The others could never train."""

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
    """Moves the turn and writes event "turn.<state>". False, and nothing done, where the move is not a legal one."""
    values = {"turn": turn, "new_cause": cause, "new_reason": reason}
    if conn.execute(_move[to], values).rowcount == 0:
        return False
    events.append(conn, f"turn.{to.value}", turn, {"reason": reason} if reason else {}, at)
    return True


def drop(conn: Connection, turn: str, cause: Cause, reason: str, *, at: float) -> bool:
    """`move` to DROPPED. `reason` is a sentence for a person."""
    return move(conn, turn, TurnState.DROPPED, at=at, cause=cause, reason=reason)


def drop_all(conn: Connection, turns_: Sequence[str], cause: Cause, reason: str, *, at: float) -> int:
    """How many of them were dropped."""
    return sum(drop(conn, turn, cause, reason, at=at) for turn in turns_)
