"""Reactions and verdicts of turns without damaged rows: one of them must not hide the others from the owner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from sqlalchemy import Connection

from openclaw_rl.errors import DamagedRow
from openclaw_rl.store import turns
from openclaw_rl.types import Reaction, Verdict

_Row = TypeVar("_Row")


def readable_reactions(conn: Connection, ids: Sequence[str]) -> Mapping[str, Reaction]:
    """Return the current reactions of these turns by turn, without damaged ones."""
    return _read_undamaged(conn, ids, turns.current_reactions)


def readable_verdicts(conn: Connection, ids: Sequence[str]) -> Mapping[str, Verdict]:
    """Return the current verdicts of these turns by turn, without damaged ones."""
    return _read_undamaged(conn, ids, turns.current_verdicts)


def _read_undamaged(
    conn: Connection,
    ids: Sequence[str],
    read: Callable[[Connection, Sequence[str]], dict[str, _Row]],
) -> Mapping[str, _Row]:
    """Read all rows at once or, if one of them is damaged, one by one."""
    try:
        return read(conn, ids)
    except DamagedRow:
        pass
    rows: dict[str, _Row] = {}
    for id_ in ids:
        try:
            rows |= read(conn, [id_])
        except DamagedRow:
            continue
    return rows
