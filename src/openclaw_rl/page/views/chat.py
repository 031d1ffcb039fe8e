"""The view of the chat, and of what was noted of its replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_rl.page.chat_stream import PATH
from openclaw_rl.page.view import View, ViewRequest
from openclaw_rl.status.chat_notes import notes_on_turns
from openclaw_rl.store.lineage import policies

_MAX_TURNS = 50
"""Replies of a conversation whose notes are shown."""


def collect_chat(request: ViewRequest) -> Mapping[str, Any]:
    ids = request.text("turns").split()[-_MAX_TURNS:]
    return {
        "notes": notes_on_turns(request.conn, ids),
        "head": policies.head(request.conn).version,
        "stream_path": PATH,
    }


VIEWS: Sequence[View] = (View(path="/ui/chat", template="chat.html", collect=collect_chat),)
