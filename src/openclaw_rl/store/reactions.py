"""Writes of the collect stage: a turn's position in its session, its reaction, feedback and observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, case, delete, func, select, update
from sqlalchemy.dialects.sqlite import insert

from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store import schema as t
from openclaw_rl.store.behaviour.observations import is_signal
from openclaw_rl.store.rows import to_json
from openclaw_rl.store.turn_states import REOPENABLE_REASONS, transition
from openclaw_rl.types import ExchangeStatus, Kind, Message, TurnState

_update_position = (
    update(t.turns)
    .where(t.turns.c.id == bindparam("turn"))
    .values(
        {
            name: bindparam(f"new_{name}")
            for name in ("session", "parent", "relation", "relation_of")
        }
    )
    .values(kind=case((t.turns.c.revision > 0, t.turns.c.kind), else_=bindparam("new_kind")))
    .values(unlinked=bindparam("new_unlinked"), unlinked_code=bindparam("new_unlinked_code"))
    .returning(t.turns.c.kind)
)
_to_main = update(t.turns).where(t.turns.c.id == bindparam("turn")).values(kind=Kind.MAIN.value)
_count_known = select(func.count()).where(
    t.reactions.c.turn == bindparam("turn"), t.reactions.c.signature == bindparam("signature")
)
_select_state: Select[Any] = (
    select(
        t.turns.c.id,
        t.turns.c.state,
        t.turns.c.cause,
        t.turns.c.revision,
        t.turns.c.signal,
        t.exchanges.c.status,
    )
    .join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
    .where(t.turns.c.id == bindparam("turn"))
)
_reaction = select(t.reactions).where(
    t.reactions.c.turn == bindparam("turn"), t.reactions.c.revision == bindparam("revision")
)
_insert_reaction = insert(t.reactions)
_set_revision = (
    update(t.turns)
    .where(t.turns.c.id == bindparam("turn"))
    .values(revision=bindparam("new_revision"))
)
_is_pending = (
    t.feedback.c.target == bindparam("turn"),
    t.feedback.c.revision.is_(None),
    t.feedback.c.retracted_at.is_(None),
)
_count_pending = select(func.count()).where(*_is_pending)
_attach_feedback = update(t.feedback).where(*_is_pending).values(revision=bindparam("new_revision"))
_revision_of = select(t.feedback.c.revision).where(t.feedback.c.id == bindparam("feedback"))
_delete_explicit = delete(t.verdicts).where(
    t.verdicts.c.turn == bindparam("turn"), t.verdicts.c.explicit == 1
)
_insert_observation = insert(t.observations).on_conflict_do_nothing()
_newest_judge = (
    select(t.verdicts.c.judge)
    .where(t.verdicts.c.turn == bindparam("turn"))
    .order_by(t.verdicts.c.revision.desc(), t.verdicts.c.at.desc())
    .limit(1)
)
_count_explicit = select(func.count()).where(
    t.verdicts.c.turn == bindparam("turn"), t.verdicts.c.explicit == 1
)
_served_in_session = (
    select(t.turns.c.id)
    .where(t.turns.c.scope == bindparam("of_scope"), t.turns.c.session == bindparam("of_session"))
    .where(t.equals_literal(t.turns.c.state, TurnState.SERVED))
    .order_by(t.turns.c.seq)
)
_overdue = (
    select(t.turns.c.id)
    .join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
    .where(
        t.equals_literal(t.turns.c.state, TurnState.SERVED),
        t.exchanges.c.finished_at < bindparam("before"),
    )
    .order_by(t.turns.c.seq)
    .limit(bindparam("limit"))
)


def set_position(
    conn: Connection,
    turn: str,
    *,
    session: str,
    parent: str | None,
    kind: Kind,
    relation: str,
    relation_of: str | None,
    unlinked: Reason | None,
) -> Kind:
    """Set the turn's session, its parent, and the relation of its request to an earlier one.

    Returns the turn's kind: `kind`, or the stored kind if the turn already has a reaction.
    """
    values: dict[str, Any] = {
        "session": session,
        "parent": parent,
        "kind": kind.value,
        "relation": relation,
        "relation_of": relation_of,
        "unlinked": None if unlinked is None else unlinked.detail,
        "unlinked_code": None if unlinked is None else unlinked.code.value,
    }
    row = conn.execute(
        _update_position, {"turn": turn} | {f"new_{name}": value for name, value in values.items()}
    )
    return Kind(row.scalar_one())


def record_reaction(
    conn: Connection,
    turn: str,
    *,
    messages: Sequence[Message],
    signature: bytes,
    source: str | None,
    how: str,
    at: float,
    was_side: bool = False,
) -> bool:
    """Store a reaction from the conversation as the next revision and set the turn to CLOSED.

    Returns False without a change if the turn cannot be closed or already has this reaction. `was_side`: the turn was
    dropped as side traffic by mistake; it becomes main.
    """
    now = conn.execute(_select_state, {"turn": turn}).one()
    if not (_can_close(now) or (was_side and now.cause == ReasonCode.SIDE)):
        return False
    if conn.execute(_count_known, {"turn": turn, "signature": signature}).scalar_one():
        return False
    if was_side:
        conn.execute(_to_main, {"turn": turn})
    row = {
        "messages": to_json(messages),
        "signature": signature,
        "source": source,
        "how": how,
        "at": at,
    }
    _add_revision(conn, now, row)
    return True


def record_pending_feedback(conn: Connection, turn: str, at: float) -> bool:
    """Store pending feedback as the next revision, together with the messages of the reaction so far.

    Returns False if none is pending, while the reply runs, and for a turn that can never be trained on.
    """
    now = conn.execute(_select_state, {"turn": turn}).one()
    if now.status == ExchangeStatus.RUNNING or not _can_close(now):
        return False
    if conn.execute(_count_pending, {"turn": turn}).scalar_one() == 0:
        return False
    _repeat_reaction(conn, now, how="feedback", source=None, at=at)
    conn.execute(_attach_feedback, {"turn": turn, "new_revision": now.revision + 1})
    return True


def record_retraction(conn: Connection, turn: str, feedback: str, at: float) -> bool:
    """Store the reaction without feedback that was taken back as the next revision, to be judged by what is left.

    The verdicts that stood on scores go; the scores that are left give a new one. Returns False without a change if the
    feedback had not counted yet, or if the turn can never be trained on.
    """
    if conn.execute(_revision_of, {"feedback": feedback}).scalar_one_or_none() is None:
        return False
    now = conn.execute(_select_state, {"turn": turn}).one()
    if not _can_close(now):
        return False
    conn.execute(_delete_explicit, {"turn": turn})
    _repeat_reaction(conn, now, how="feedback", source=None, at=at)
    return True


def record_observation(
    conn: Connection, turn: str, observation: str, *, source: str | None, at: float
) -> bool:
    """Store what a person did with the reply (`behaviour/observations.py`), and set the turn to CLOSED to be judged.

    `source`: the exchange that shows it. Returns False if the turn stays as it is: it cannot be closed, or a judge has
    found evidence in the reaction, which counts before behaviour.
    """
    turn_row = conn.execute(_select_state, {"turn": turn}).one()
    row = {"turn": turn, "signal": observation, "source": source, "at": at}
    is_known = conn.execute(_insert_observation, row).rowcount == 0
    if is_known or not _can_close(turn_row):
        return False
    if turn_row.signal and not conn.execute(_count_explicit, {"turn": turn}).scalar_one():
        judge = conn.execute(_newest_judge, {"turn": turn}).scalar_one()
        if not is_signal(judge):
            return False
    _repeat_reaction(conn, turn_row, how="behaviour", source=source, at=at)
    return True


def record_outcome(conn: Connection, turn: str, *, at: float) -> None:
    """Set a turn to CLOSED because its episode has ended. The turn must wait for a reaction, or be reopenable."""
    now = conn.execute(_select_state, {"turn": turn}).one()
    assert _can_close(now), f"turn {turn} is {now.state}"
    _repeat_reaction(conn, now, how="outcome", source=None, at=at)


def served_in_session(conn: Connection, scope: str, session: str) -> list[str]:
    """Return the turns of the session that wait for a reaction, oldest first."""
    return list(
        conn.execute(_served_in_session, {"of_scope": scope, "of_session": session}).scalars()
    )


def overdue_turns(conn: Connection, before: float, limit: int) -> list[str]:
    """Return turns that wait for a reaction and whose reply ended before `before`, oldest first."""
    return list(conn.execute(_overdue, {"before": before, "limit": limit}).scalars())


def _can_close(now: Row[Any]) -> bool:
    return now.state != TurnState.DROPPED or now.cause in REOPENABLE_REASONS


def _repeat_reaction(
    conn: Connection, now: Row[Any], *, how: str, source: str | None, at: float
) -> None:
    """Add a revision with the messages of the current reaction; `how` and `source` are of a first one."""
    before = conn.execute(_reaction, {"turn": now.id, "revision": now.revision}).one_or_none()
    row = {"messages": to_json(()), "signature": None, "source": source, "how": how}
    if before is not None:
        row = {name: getattr(before, name) for name in row}
    _add_revision(conn, now, row | {"at": at})


def _add_revision(conn: Connection, now: Row[Any], row: dict[str, Any]) -> None:
    revision = now.revision + 1
    conn.execute(_insert_reaction, {"turn": now.id, "revision": revision} | row)
    conn.execute(_set_revision, {"turn": now.id, "new_revision": revision})
    moved = transition(conn, now.id, TurnState.CLOSED, at=row["at"])
    assert moved, f"turn {now.id}: {now.state} cannot be closed"
