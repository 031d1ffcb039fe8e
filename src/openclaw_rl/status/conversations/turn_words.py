"""The words of the person in a request and in a reaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection

from openclaw_rl.status.conversations.conversation_text import conversation_messages, person_text
from openclaw_rl.store import exchanges
from openclaw_rl.types import Message, Reaction, Request


def last_user_text(messages: Sequence[Message]) -> str:
    """Return the person's last words; "" without any."""
    spoken = (person_text(m) for m in reversed(messages) if m.get("role") == "user")
    return next(spoken, "")


def asked_words(request: Request) -> str:
    """Return the words of the person that a reply answers; "" if they are not stored."""
    return last_user_text(conversation_messages(request))


def questions_of_turns(conn: Connection, turns: Collection[str]) -> dict[str, str]:
    """Return the words of the person that these turns answer, by turn; of turns without readable text, nothing."""
    readable = exchanges.get_readable(conn, list(dict.fromkeys(turns)))
    return {turn: asked_words(exchange.request) for turn, exchange in readable.items()}


def reaction_words(reaction: Reaction) -> str:
    """Return all words of the person in a reaction; "" if only tools reacted."""
    spoken = [person_text(m) for m in reaction.messages if m.get("role") == "user"]
    return "\n\n".join(filter(None, spoken))
