"""The view of the chat, and of what was noted of its replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from openclaw_rl.common.message_hash import visible_text
from openclaw_rl.common.printable import cut_text
from openclaw_rl.page.chat_stream import PATH
from openclaw_rl.page.view import View, ViewRequest
from openclaw_rl.status.chat_notes import notes_on_turns
from openclaw_rl.store import exchanges
from openclaw_rl.store.lineage import policies

_MAX_TURNS = 50
"""Replies of a conversation whose notes are shown."""
_REPLY_CHARS = 50


def collect_chat(request: ViewRequest) -> Mapping[str, Any]:
    ids = request.text("turns").split()[-_MAX_TURNS:]
    notes = notes_on_turns(request.conn, ids)
    return {
        "notes": notes,
        "replies": _first_words(request.conn, [note.turn for note in notes if note.turn]),
        "head": policies.head(request.conn).version,
        "stream_path": PATH,
    }


def _first_words(conn: Connection, turns: Sequence[str]) -> Mapping[str, str]:
    """Return the first words of these replies, by turn."""
    first_words = {}
    for turn, exchange in exchanges.get_readable(conn, turns).items():
        if exchange.reply is not None:
            text = visible_text(exchange.reply.message)
            first_words[turn] = cut_text(" ".join(text.split()), _REPLY_CHARS)
    return first_words


VIEWS: Sequence[View] = (View(path="/ui/chat", template="chat.html", collect=collect_chat),)
