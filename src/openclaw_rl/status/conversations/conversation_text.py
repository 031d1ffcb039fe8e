"""Texts of conversations as the person wrote them: titles, messages, and search in them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from openclaw_rl.common.message_hash import (
    message_text,
    strip_client_text,
    strip_time_stamp,
    visible_text,
)
from openclaw_rl.common.printable import cut_text
from openclaw_rl.errors import DamagedRow
from openclaw_rl.store import exchanges, sessions
from openclaw_rl.store.rows import message_from_json, messages_from_json, naming_damage
from openclaw_rl.types import Message, Request

TITLE_CHARS = 70
NO_TITLE = "conversation without text"
MAX_TEXT_CHARS = 20_000
"""Characters of a message that are shown."""
ROLE_NAMES = {
    "user": "Person",
    "assistant": "Assistant",
    "tool": "Result of a tool",
    "system": "Instructions",
    "developer": "Instructions",
}
_REASONING_END = "</think>"


def person_text(message: Message) -> str:
    """Return the text of a person's message, without what the client added."""
    return strip_time_stamp(strip_client_text(message_text(message)).strip()).strip()


def conversation_messages(request: Request) -> list[Message]:
    """Return the messages of the conversation, without ephemeral ones (`serve.ephemeral_patterns`)."""
    return [request.messages[m.index] for m in request.marks] if request.messages else []


def new_messages(messages: Sequence[Message]) -> list[Message]:
    """Return the messages since the last reply: those that this request brought."""
    replies = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
    return list(messages[replies[-1] + 1 :]) if replies else list(messages)


def title_of(messages: Iterable[Message]) -> str:
    """Return the beginning of the person's first message in one line; "" without one."""
    for message in messages:
        if message.get("role") != "user":
            continue
        text = " ".join(person_text(message).split())
        if text:
            return _cut_between_words(text)
    return ""


def _cut_between_words(text: str) -> str:
    if len(text) <= TITLE_CHARS:
        return text
    head = text[: TITLE_CHARS - 2]
    whole = head.rpartition(" ")[0]
    return f"{whole} …" if len(whole) > TITLE_CHARS // 2 else f"{head}…"


def titles_of_turns(conn: Connection, first: Collection[str]) -> dict[str, str]:
    """Return the titles of the conversations that begin with these turns, by turn."""
    readable = exchanges.get_readable(conn, list(first))
    titles = {}
    for id_ in first:
        exchange = readable.get(id_)
        messages = [] if exchange is None else conversation_messages(exchange.request)
        titles[id_] = title_of(messages) or NO_TITLE
    return titles


def titles_of_sessions(conn: Connection, names: Collection[str]) -> dict[str, str]:
    """Return the titles of the sessions with these names, by name."""
    first = sessions.first_turns(conn, names)
    titles = titles_of_turns(conn, list(first.values()))
    return {name: titles[first[name]] if name in first else NO_TITLE for name in names}


def message_data(message: Message) -> dict[str, Any]:
    """Return a message as plain JSON: who, text, reasoning, tool calls, and whether it is long and secondary."""
    role = str(message.get("role", ""))
    text = person_text(message) if role == "user" else visible_text(message)
    return {
        "role": role,
        "who": ROLE_NAMES.get(role, role),
        "text": cut_text(text, MAX_TEXT_CHARS),
        "reasoning": cut_text(_reasoning(message), MAX_TEXT_CHARS),
        "calls": [_call_data(call) for call in message.get("tool_calls") or ()],
        "is_folded": role not in ("user", "assistant"),
    }


def _reasoning(message: Message) -> str:
    stated = message.get("reasoning_content")
    if isinstance(stated, str):
        return stated.strip()
    if message.get("role") != "assistant":
        return ""
    before = message_text(message).rpartition(_REASONING_END)[0]
    return before.removeprefix("<think>").strip()


def _call_data(call: Any) -> dict[str, str]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return {"name": "", "arguments": ""}
    arguments = str(function.get("arguments", ""))
    with contextlib.suppress(ValueError, RecursionError):
        arguments = json.dumps(json.loads(arguments), indent=2, ensure_ascii=False)
    return {
        "name": str(function.get("name", "")),
        "arguments": cut_text(arguments, MAX_TEXT_CHARS),
    }


def make_search(text: str) -> Callable[[bytes, bytes], bool] | None:
    """Return whether all words of a text are in what a turn brought; None without words.

    Its arguments are the messages of the request and the reply, as JSON.
    """
    searched = text.casefold().split()
    if not searched:
        return None
    escaped = [json.dumps(each, ensure_ascii=False)[1:-1] for each in searched]

    def is_match(messages: bytes, reply: bytes) -> bool:
        raw = (messages + reply).decode("utf-8", "replace").casefold()
        # Most turns are left out without reading their JSON.
        if not all(each in raw for each in escaped):
            return False
        texts = _texts_of_turn(messages, reply).casefold()
        return all(each in texts for each in searched)

    return is_match


def _texts_of_turn(messages: bytes, reply: bytes) -> str:
    parts: list[Message] = []
    # A damaged row fits no search.
    with contextlib.suppress(DamagedRow), naming_damage("", "text"):
        if messages:
            parts += new_messages(messages_from_json(messages))
        if reply:
            parts.append(message_from_json(reply))
    return "\n".join(visible_text(part) for part in parts if part.get("role") != "system")
