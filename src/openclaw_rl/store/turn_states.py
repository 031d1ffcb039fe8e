"""State transitions of turns, and the reasons for which turns are dropped.

All go through `transition`, which allows only those of `types.TURN_TRANSITIONS`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from sqlalchemy import Connection, Update, bindparam, select, update

from openclaw_rl.common.message_hash import visible_text
from openclaw_rl.reasons import TAKEN_BACK_CODES, ReasonCode
from openclaw_rl.store import events
from openclaw_rl.store.schema import turns
from openclaw_rl.types import (
    TURN_TRANSITIONS,
    FinishReason,
    Ids,
    Reply,
    TurnState,
)

REOPENABLE_REASONS = frozenset(
    {ReasonCode.SESSION_DONE, ReasonCode.TIMEOUT, ReasonCode.SUPERSEDED, ReasonCode.REDACTED}
)
"""Reasons of turns dropped without evidence; late evidence reopens them. The others can never be trained on."""

MIN_LOOP_TOKENS = 32
"""In tokens; a shorter reply may repeat itself on purpose ("ha ha ha")."""
MAX_PERIOD = 8
_ALLOWED_FROM = {
    to: tuple(sorted(s for s in TurnState if to in TURN_TRANSITIONS[s])) for to in TurnState
}


def _transition_statement(to: TurnState) -> Update:
    return (
        update(turns)
        .where(turns.c.id == bindparam("turn"), turns.c.state.in_(_ALLOWED_FROM[to]))
        .values(state=to.value, cause=bindparam("new_cause"), reason=bindparam("new_reason"))
    )


_transitions = {to: _transition_statement(to) for to in TurnState if _ALLOWED_FROM[to]}
_set_taken_back = (
    update(turns)
    .where(turns.c.id == bindparam("turn"), turns.c.state == TurnState.DROPPED.value)
    .values(cause=bindparam("new_cause"), reason=bindparam("new_reason"))
)


def transition(
    conn: Connection,
    turn: str,
    to: TurnState,
    *,
    at: float,
    cause: ReasonCode | None = None,
    reason: str | None = None,
) -> bool:
    """Set the turn's state and append event "turn.<state>". Return False without a change if it is not allowed."""
    values = {"turn": turn, "new_cause": cause, "new_reason": reason}
    if conn.execute(_transitions[to], values).rowcount == 0:
        return False
    events.append(conn, f"turn.{to.value}", turn, {"reason": reason} if reason else {}, at)
    return True


def drop(conn: Connection, turn: str, cause: ReasonCode, reason: str, *, at: float) -> bool:
    """Set the turn to DROPPED, if allowed. `reason` is a sentence for a person."""
    return transition(conn, turn, TurnState.DROPPED, at=at, cause=cause, reason=reason)


def drop_all(
    conn: Connection, turns_: Sequence[str], cause: ReasonCode, reason: str, *, at: float
) -> int:
    """Drop the turns that may be dropped; return their number."""
    return sum(drop(conn, turn, cause, reason, at=at) for turn in turns_)


def take_back(
    conn: Connection,
    turns_: Sequence[str],
    reason: str,
    *,
    at: float,
    code: ReasonCode = ReasonCode.TAKEN_BACK,
) -> None:
    """Drop the turns for good. Those dropped before get this reason, too, so that late evidence does not reopen them.

    `lessons.removal.take_back` takes them out of the lessons, too. `code`: one of `TAKEN_BACK_CODES`.
    """
    drop_all(conn, turns_, code, reason, at=at)
    if turns_:
        rows = [{"turn": turn, "new_cause": code.value, "new_reason": reason} for turn in turns_]
        conn.execute(_set_taken_back, rows)


def taken_back(
    conn: Connection, turns_: Sequence[str], codes: Collection[ReasonCode] = TAKEN_BACK_CODES
) -> list[str]:
    """Return those of the turns that were taken back, for a reason with one of these codes."""
    causes = sorted(code.value for code in codes)
    query = select(turns.c.id).where(turns.c.id.in_(list(turns_)), turns.c.cause.in_(causes))
    return list(conn.execute(query.order_by(turns.c.seq)).scalars())


def degenerate_reason(reply: Reply) -> str | None:
    """Return why a finished reply is degenerate, or None. The stop token does not count as content."""
    is_truncated = reply.finish_reason is FinishReason.LENGTH
    content = reply.response_ids if is_truncated else reply.response_ids[:-1]
    has_output = bool(visible_text(reply.message) or reply.message.get("tool_calls"))
    if len(content) == 0 or not (has_output or is_truncated):
        return "degenerate reply: it is empty"
    period = loop_period(content) if len(content) >= MIN_LOOP_TOKENS else None
    if period is None:
        return None
    what = "the same token" if period == 1 else f"the same {period} tokens"
    return f"degenerate reply: it repeats {what} for more than half of its {len(content)} tokens"


def loop_period(ids: Ids) -> int | None:
    """Return the shortest period (1 to 8 tokens) of a loop over more than half of `ids` [n] in one stretch, or None."""
    n = len(ids)
    for period in range(1, MAX_PERIOD + 1):
        same = ids[period:] == ids[:-period]
        if 2 * (np.count_nonzero(same) + period) > n and 2 * (_longest_run(same) + period) > n:
            return period
    return None


def _longest_run(flags: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    edges = np.flatnonzero(~np.concatenate(([False], flags, [False])))
    return int(np.max(np.diff(edges))) - 1
