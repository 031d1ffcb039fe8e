"""The people whose evidence is set aside in what is common to all, as `status` shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text
from sqlalchemy import Connection

from openclaw_rl.store.trust.evidence import read_set_aside

# People whom the table names; JSON has all.
_SHOWN_PEOPLE = 20


def set_aside_rows(conn: Connection) -> list[dict[str, Any]]:
    """Return the people as plain JSON: key, user, why as a code and in words, and how many of how many turns."""
    return [
        {
            "key": one.person[0],
            "user": one.person[1],
            "code": one.reason.code.value,
            "reason": one.reason.detail,
            "part": one.part,
            "of": one.whole,
        }
        for one in read_set_aside(conn)
    ]


def set_aside_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """Yield one line for each person."""
    for row in rows[:_SHOWN_PEOPLE]:
        user = f", user {row['user']}" if row["user"] else ""
        part = f"{row['part']} of {row['of']} turns do not count for others"
        yield Text(f"set aside: key {row['key']}{user}: {part}: {row['reason']}", "yellow")
    if len(rows) > _SHOWN_PEOPLE:
        more = len(rows) - _SHOWN_PEOPLE
        yield Text(f"set aside: {more} more (`openclaw-rl status --json` names them)", "yellow")
