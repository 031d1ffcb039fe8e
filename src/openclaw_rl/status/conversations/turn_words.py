"""The words of the person in a request and in a reaction."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.common.message_hash import message_text, strip_client_text
from openclaw_rl.status.conversations.conversation_text import conversation_messages
from openclaw_rl.types import Message, Reaction, Request


def last_user_text(messages: Sequence[Message]) -> str:
    """Return the person's last words; "" without any."""
    return next(
        (
            strip_client_text(message_text(m)).strip()
            for m in reversed(messages)
            if m.get("role") == "user"
        ),
        "",
    )


def asked_words(request: Request) -> str:
    """Return the words of the person that a reply answers; "" if they are not stored."""
    return last_user_text(conversation_messages(request))


def reaction_words(reaction: Reaction) -> str:
    """Return all words of the person in a reaction; "" if only tools reacted."""
    texts = []
    for message in reaction.messages:
        if message.get("role") == "user":
            texts.append(strip_client_text(message_text(message)).strip())
    return "\n\n".join(text for text in texts if text)
