"""Reactions of which the judge has made nothing, newest verdict first, as long as no feedback says what they meant."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, Select, func, select, tuple_

from openclaw_rl.store import schema as t
from openclaw_rl.store.behaviour.observations import BEHAVIOUR_JUDGE
from openclaw_rl.store.page_tables import IS_NOT_UNDERSTOOD
from openclaw_rl.types import Kind, TurnState

_has_feedback = (
    select(t.feedback.c.seq)
    .where(t.feedback.c.target == t.turns.c.id, t.feedback.c.retracted_at.is_(None))
    .exists()
)
_unclear = (
    select(t.verdicts.c.turn, t.verdicts.c.at)
    .join(t.turns, t.turns.c.id == t.verdicts.c.turn)
    .where(
        # Of the partial index, along which the rows are read.
        IS_NOT_UNDERSTOOD,
        t.turns.c.revision == t.verdicts.c.revision,
        t.turns.c.state == TurnState.JUDGED.value,
        t.turns.c.kind == Kind.MAIN.value,
        t.verdicts.c.judge.not_like(f"{BEHAVIOUR_JUDGE}%"),
        ~_has_feedback,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnclearTurn:
    """A turn whose reaction was not understood. `at`: of the verdict; both together are the place in the list."""

    turn: str
    at: float


def unclear_turns(
    conn: Connection, limit: int, *, before: UnclearTurn | None = None
) -> list[UnclearTurn]:
    """Return the newest turns whose reactions were not understood; `before`: only those after it in the list."""
    query: Select[tuple[str, float]] = _unclear
    if before is not None:
        place = tuple_(t.verdicts.c.at, t.verdicts.c.turn)
        query = query.where(
            t.verdicts.c.at <= before.at,
            place < tuple_(before.at, before.turn),
        )
    newest = query.order_by(t.verdicts.c.at.desc(), t.verdicts.c.turn.desc()).limit(limit)
    return [UnclearTurn(turn=row.turn, at=row.at) for row in conn.execute(newest)]


def count_unclear_since(conn: Connection, at: float, most: int) -> int:
    """Return the number of verdicts since then by which nothing was understood, at most `most`."""
    newer = _unclear.where(t.verdicts.c.at > at).limit(most).subquery()
    return int(conn.execute(select(func.count()).select_from(newer)).scalar_one())
