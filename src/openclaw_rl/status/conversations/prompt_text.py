"""The last message of a prompt that a person wrote."""

from __future__ import annotations

from openclaw_rl.common.message_hash import message_text, strip_client_text, strip_time_stamp
from openclaw_rl.types import Request


def asked_text(request: Request) -> str:
    """Return what the person asked, without what the client added; "" if it is not stored."""
    if not request.messages:
        return ""
    for mark in reversed(request.marks):
        message = request.messages[mark.index]
        if message.get("role") == "user":
            return strip_time_stamp(strip_client_text(message_text(message)).strip()).strip()
    return ""
