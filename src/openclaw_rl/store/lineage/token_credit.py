"""The credit by token that a version's step gave each of its turns."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, bindparam, select, update

from openclaw_rl.store import schema as t

log = logging.getLogger("openclaw_rl.store")

_DTYPE = np.dtype("<f2")
_set_credit = (
    update(t.uses)
    .where(t.uses.c.policy == bindparam("of"), t.uses.c.turn == bindparam("to"))
    .values(credit=bindparam("given"))
)


def record_credit(
    conn: Connection, version: int, credit: Mapping[str, NDArray[np.float16]]
) -> None:
    """Store the credit [R] of the tokens of each turn that the version used, by turn."""
    if credit:
        rows = [
            {"of": version, "to": turn, "given": np.asarray(c, _DTYPE).tobytes()}
            for turn, c in credit.items()
        ]
        conn.execute(_set_credit, rows)


def credit_of_version(conn: Connection, version: int) -> dict[str, NDArray[np.float16]]:
    """Return the credit [R] of each turn of the version that has one recorded."""
    query = select(t.uses.c.turn, t.uses.c.credit).where(
        t.uses.c.policy == version, t.uses.c.credit.is_not(None)
    )
    return {
        row.turn: _unpack_credit(row.credit)
        for row in conn.execute(query)
        if _is_whole(row.credit, row.turn)
    }


def credit_of_turn(conn: Connection, turn: str) -> dict[int, NDArray[np.float16]]:
    """Return the credit [R] that each version gave the turn and recorded, oldest version first."""
    u = t.uses.c
    rows = conn.execute(
        select(u.policy, u.credit).where(u.turn == turn, u.credit.is_not(None)).order_by(u.policy)
    )
    return {row.policy: _unpack_credit(row.credit) for row in rows if _is_whole(row.credit, turn)}


def _is_whole(raw: bytes, turn: str) -> bool:
    """Return whether a recorded credit can be read; a damaged one is only missing from what is shown."""
    if len(raw) % _DTYPE.itemsize == 0:
        return True
    log.warning("%s: its credit by token is damaged, and is not shown", turn)
    return False


def _unpack_credit(raw: bytes) -> NDArray[np.float16]:
    return np.frombuffer(raw, _DTYPE).astype(np.float16)
