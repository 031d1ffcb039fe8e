"""Audit of the owner's acts: what was changed, by a command or on the page, and when.

An act is recorded in the transaction that carries it out, so that its row says whether it was done.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select

from openclaw_rl.store.page_tables import act_details, acts
from openclaw_rl.store.rows import from_json, to_json

MAX_OUTCOME_CHARS = 500


class ActKind(StrEnum):
    """Kind of an act."""

    UNDO = "undo"
    ROLL_BACK = "roll back"
    PROMOTE = "promote"
    PIN_VERSION = "pin version"
    UNPIN_VERSION = "unpin version"
    FREEZE = "freeze training"
    UNFREEZE = "unfreeze training"
    EDIT_LESSON = "edit lesson"
    PIN_LESSON = "pin lesson"
    UNPIN_LESSON = "unpin lesson"
    SHARE_LESSON = "share lesson"
    FORGET_LESSON = "forget lesson"
    SCORE = "score reply"
    RETRACT_SCORE = "retract score"
    SIGN_OUT = "sign out browsers"


class ActActor(StrEnum):
    """Place where an act was asked for."""

    COMMAND = "command"
    PAGE = "page"


_KINDS = frozenset(kind.value for kind in ActKind)
_ACTORS = frozenset(actor.value for actor in ActActor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One row of the audit, with its number. `target`: a version, lesson, turn or policy. `outcome`: in words."""

    seq: int
    id: str
    kind: ActKind
    target: str
    actor: ActActor
    outcome: str
    at: float


def new_act_id() -> str:
    return secrets.token_hex(12)


def record_act(
    conn: Connection,
    kind: ActKind,
    target: str,
    *,
    actor: ActActor,
    outcome: str,
    at: float,
    id: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Record an act in its transaction.

    `id`: of the form on the page, which is carried out once. `details`: what it changed, for a receipt.
    """
    act = id or new_act_id()
    row = {
        "id": act,
        "kind": kind.value,
        "target": target,
        "actor": actor.value,
        "outcome": outcome[:MAX_OUTCOME_CHARS],
        "at": at,
    }
    conn.execute(insert(acts).values(row))
    if details is not None:
        conn.execute(insert(act_details).values(act=act, data=to_json(details)))


def get_act(conn: Connection, id: str) -> Act | None:
    row = conn.execute(select(acts).where(acts.c.id == id)).one_or_none()
    return None if row is None else _act_from_row(row)


def last_seq(conn: Connection) -> int:
    """Return the number of the newest act; 0 without any."""
    return int(conn.execute(select(func.coalesce(func.max(acts.c.seq), 0))).scalar_one())


def details_of_act(conn: Connection, id: str) -> dict[str, Any] | None:
    """Return what an act changed; None if it recorded no details."""
    query = select(act_details.c.data).where(act_details.c.act == id)
    data = conn.execute(query).scalar_one_or_none()
    return None if data is None else dict(from_json(data))


def newest_acts(
    conn: Connection, limit: int, kind: ActKind | None = None, before: int | None = None
) -> Iterator[Act]:
    """Yield the newest acts, newest first. `kind`: only those of this kind; `before`: only those with lower numbers."""
    query = select(acts).order_by(acts.c.seq.desc()).limit(limit)
    if kind is not None:
        query = query.where(acts.c.kind == kind.value)
    if before is not None:
        query = query.where(acts.c.seq < before)
    for row in conn.execute(query):
        # A later release may have recorded acts of other kinds.
        if row.kind in _KINDS and row.actor in _ACTORS:
            yield _act_from_row(row)


def acts_after(conn: Connection, id: str, kind: ActKind, limit: int) -> list[Act]:
    """Return the acts of this kind that followed an act, oldest first."""
    seq = select(acts.c.seq).where(acts.c.id == id).scalar_subquery()
    query = select(acts).where(acts.c.seq > seq, acts.c.kind == kind.value)
    return [_act_from_row(row) for row in conn.execute(query.order_by(acts.c.seq).limit(limit))]


def _act_from_row(row: Row[tuple[object, ...]]) -> Act:
    return Act(
        seq=row.seq,
        id=row.id,
        kind=ActKind(row.kind),
        target=row.target,
        actor=ActActor(row.actor),
        outcome=row.outcome,
        at=row.at,
    )
