"""Insert a hindsight hint, or lessons, into a prompt; shared by the gateway, the trainer and the reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any

from openclaw_rl.types import Message


class HintFormat(StrEnum):
    """Format of a hint at the end of a user message.

    A model follows a plain sentence more often, because people write so; a model that was trained on bracketed hints,
    as the starter was, follows those. Measured in docs/decisions/0031-format-of-hints.md.
    """

    PARAGRAPH = "paragraph"
    """A paragraph of its own."""
    BRACKETED = "bracketed"
    """As "[Hint: ...]"."""


def with_hint(
    messages: Sequence[Message],
    hint: str,
    transient: Callable[[Message], bool],
    hint_format: HintFormat,
) -> list[Message]:
    """Append a hint to the last user message that is not ephemeral.

    `transient`: predicate for ephemeral messages; `hint_format`: of the model (`ModelFiles.hint_format`). Raises
    `ValueError` if there is no such user message.
    """
    index = hinted_index(messages, transient)
    if index is None:
        raise ValueError(
            f"a hint needs a user message to append it to; got none among {len(messages)} messages"
        )
    hinted = list(messages)
    content = append_hint(messages[index].get("content"), hint, hint_format)
    hinted[index] = {**messages[index], "content": content}
    return hinted


def hinted_index(messages: Sequence[Message], transient: Callable[[Message], bool]) -> int | None:
    """Return the index of the message to which `with_hint` appends; None if there is no such message."""
    for index in reversed(range(len(messages))):
        message = messages[index]
        if message.get("role") == "user" and not transient(message):
            return index
    return None


def lessons_hint(texts: Iterable[str]) -> str:
    """Return the texts of lessons as one hint, in which each text ends like a sentence."""
    return " ".join(text if text[-1:] in ".!?。！？" else f"{text}." for text in texts)


def append_hint(content: Any, hint: str, hint_format: HintFormat) -> Any:
    """Return the content of a message, a text or parts, with a hint at its end."""
    if hint_format is HintFormat.BRACKETED:
        hint = f"[Hint: {hint}]"
    addition = f"\n\n{hint}"
    if isinstance(content, list):
        return _append_to_parts(content, addition)
    return (content or "") + addition


def _append_to_parts(parts: list[Any], addition: str) -> list[Any]:
    """Append to the last part that is text, or as a part of its own."""
    texts = [n for n, part in enumerate(parts) if _is_text_part(part)]
    if not texts:
        return [*parts, {"type": "text", "text": addition}]
    last = texts[-1]
    extended = {**parts[last], "text": parts[last]["text"] + addition}
    return [*parts[:last], extended, *parts[last + 1 :]]


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)
