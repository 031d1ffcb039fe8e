"""Insert a hindsight hint, or lessons, into a prompt; shared by the gateway, the trainer and the reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from openclaw_rl.types import Message


def with_hint(messages: Sequence[Message], hint: str, transient: Callable[[Message], bool]) -> list[Message]:
    """Append `\\n\\n[Hint: ...]` to the last user message that is not ephemeral.

    `transient`: predicate for ephemeral messages. Raises `ValueError` if there is no such user message.
    """
    out, index = list(messages), hinted_index(messages, transient)
    if index is None:
        raise ValueError(f"a hint needs a user message to append it to; got none among {len(out)} messages")
    out[index] = {**out[index], "content": _append_text(out[index].get("content"), f"\n\n[Hint: {hint}]")}
    return out


def hinted_index(messages: Sequence[Message], transient: Callable[[Message], bool]) -> int | None:
    """Return the index of the message to which `with_hint` appends; None if there is no such message."""
    return next(
        (i for i in reversed(range(len(messages))) if messages[i].get("role") == "user" and not transient(messages[i])),
        None,
    )


def lessons_hint(texts: Iterable[str]) -> str:
    """Return several lessons as one hint: their sentences one after the other."""
    return " ".join(text if text[-1:] in ".!?。！？" else f"{text}." for text in texts)


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
