"""The view of the reactions that the judge did not understand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from openclaw_rl.common.message_hash import visible_text
from openclaw_rl.page.view import NotFound, View, ViewRequest
from openclaw_rl.status.conversations.turn_words import asked_words, reaction_words
from openclaw_rl.status.readable_turns import readable_reactions, readable_verdicts
from openclaw_rl.status.understanding import is_understood
from openclaw_rl.store import exchanges
from openclaw_rl.store.acts import new_act_id
from openclaw_rl.store.unclear_reactions import UnclearTurn, count_unclear_since, unclear_turns

PAGE_ITEMS = 20
_READ_ROWS = 40
_MAX_READS = 10
"""Reads of rows for one page: reactions of tools, which a person did not write, are passed over."""
_MOST_NEW = 100
_SEPARATOR = "~"


def collect_not_understood(request: ViewRequest) -> Mapping[str, Any]:
    since = request.text("since")
    if since:
        new = _count_new(request.conn, since)
        return {"newest": since, "new": new, "items": [], "older": "", "is_first": True}
    before = _read_place(request.text("before"))
    items, last = _read_page(request.conn, before)
    newest = before or next(iter(unclear_turns(request.conn, 1)), None)
    return {
        "items": items,
        "older": "" if last is None else _format_place(last),
        "newest": "0" if newest is None else repr(newest.at),
        "new": 0,
        "is_first": before is None,
    }


def _read_page(
    conn: Connection, before: UnclearTurn | None
) -> tuple[list[dict[str, Any]], UnclearTurn | None]:
    """Return the items after a place, and the place from which there may be more; None: there are no more."""
    items: list[dict[str, Any]] = []
    last = before
    for _ in range(_MAX_READS):
        rows = unclear_turns(conn, _READ_ROWS, before=last)
        by_turn = {item["turn"]: item for item in _read_items(conn, rows)}
        for row in rows:
            last = row
            if row.turn in by_turn:
                items.append(by_turn[row.turn])
            if len(items) == PAGE_ITEMS:
                return items, last
        if len(rows) < _READ_ROWS:
            return items, None
    return items, last


def _count_new(conn: Connection, since: str) -> int:
    try:
        return count_unclear_since(conn, float(since), _MOST_NEW)
    except ValueError:
        raise NotFound(f"since in the address is {since[:40]!r}: expected a number") from None


def _read_place(text: str) -> UnclearTurn | None:
    if not text:
        return None
    at, _, turn = text.partition(_SEPARATOR)
    try:
        return UnclearTurn(turn=turn, at=float(at))
    except ValueError:
        raise NotFound(f"before in the address is {text[:40]!r}: expected a place") from None


def _format_place(row: UnclearTurn) -> str:
    return f"{row.at!r}{_SEPARATOR}{row.turn}"


def _read_items(conn: Connection, rows: Sequence[UnclearTurn]) -> list[dict[str, Any]]:
    """Return items of those turns to which a person said something, and which no other judge has understood."""
    ids = [row.turn for row in rows]
    words = {}
    for turn, reaction in readable_reactions(conn, ids).items():
        text = reaction_words(reaction)
        if text:
            words[turn] = text
    verdicts = readable_verdicts(conn, list(words))
    unclear = [turn for turn, verdict in verdicts.items() if not is_understood(verdict)]
    items = []
    for turn, exchange in exchanges.get_readable(conn, unclear).items():
        if exchange.reply is None:
            continue
        item = {
            "turn": turn,
            "at": verdicts[turn].at,
            "asked": asked_words(exchange.request),
            "reply": visible_text(exchange.reply.message),
            "reaction": words[turn],
            "act_id": new_act_id(),
        }
        items.append(item)
    return items


VIEWS: Sequence[View] = (
    View(
        path="/ui/not-understood",
        template="not_understood.html",
        collect=collect_not_understood,
    ),
)
