"""Insert a hindsight hint into a prompt; shared by the trainer and by all code that shows a hinted prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from openclaw_rl.types import Message


def with_hint(messages: Sequence[Message], hint: str, transient: Callable[[Message], bool]) -> list[Message]:
    """Append `\\n\\n[Hint: ...]` to the last user message that is not ephemeral.

    `transient`: predicate for ephemeral messages. Raises `ValueError` if there is no such user message.
    """
    out = list(messages)
    for index in range(len(out) - 1, -1, -1):
        message = out[index]
        if message.get("role") == "user" and not transient(message):
            out[index] = {**message, "content": _append_text(message.get("content"), f"\n\n[Hint: {hint}]")}
            return out
    raise ValueError(f"a hint needs a user message to append it to; got none among {len(out)} messages")


def _append_text(content: Any, words: str) -> Any:
    if not isinstance(content, list):
        return (content or "") + words
    parts = list(content)
    for index in range(len(parts) - 1, -1, -1):
        part = parts[index]
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            parts[index] = {**part, "text": part["text"] + words}
            return parts
    return [*parts, {"type": "text", "text": words}]
