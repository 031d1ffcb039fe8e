"""Read what an earlier message has from another server, or in a form that no server takes, as text.

Only the newest message of a request is refused: the client can send another one. An earlier one is in every later
request, so a refusal would end the conversation. What cannot be read is replaced by a text in the same wire format, and
then read as usual.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_rl.errors import RequestError
from openclaw_rl.render.degradation import Degradation
from openclaw_rl.serve.dialects.validation import NON_TEXT_PARTS, part_type

UNNAMED_TOOL = "unnamed_tool"
"""Name of a tool in a call that has none."""
REASONING_PARTS = frozenset(
    {"thinking", "reasoning", "reasoning_text", "reasoning_content", "thought"}
)
"""Types of parts that are the reasoning of a reply."""
ENCRYPTED_PARTS = frozenset(
    {"redacted_thinking", "redacted_reasoning", "encrypted_reasoning", "reasoning.encrypted"}
)
"""Types of parts that only the service that wrote them can read."""
ROLE_NAMES: Mapping[str, str] = {
    "ai": "assistant",
    "assistant": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "developer": "developer",
    "system": "system",
    "function": "tool",
    "observation": "tool",
    "tool": "tool",
}
"""Role of another server -> the role here; the user's for any other."""
_TEXT_KEYS = (
    "text",
    "content",
    "refusal",
    "thinking",
    "reasoning",
    "summary",
    "output",
    "transcript",
)
# Without meaning for a model, or encrypted.
_OPAQUE_KEYS = frozenset(
    {
        "id",
        "annotations",
        "cache_control",
        "caller",
        "citations",
        "data",
        "encrypted_content",
        "encrypted_index",
        "encrypted_stdout",
        "index",
        "logprobs",
        "signature",
        "status",
    }
)
_EMPTY: Sequence[Any] = (None, "", [], {})
# Levels of nested parts that are read as parts; deeper ones are shown as JSON.
_MAX_DEPTH = 8


class ReplayNotes:
    """The kinds of changes that reading an earlier message took."""

    def __init__(self) -> None:
        self._kinds: dict[Degradation, None] = {}

    def add(self, kind: Degradation) -> None:
        self._kinds[kind] = None

    @property
    def kinds(self) -> tuple[Degradation, ...]:
        return tuple(self._kinds)


def stand_in_text(part: Any, notes: ReplayNotes, depth: int = 0) -> str:
    """Return the text that shows a part; "" if a model can read nothing of it."""
    if part is None or isinstance(part, str):
        return part or ""
    if isinstance(part, list) and depth < _MAX_DEPTH:
        return "\n".join(filter(None, (stand_in_text(one, notes, depth + 1) for one in part)))
    is_part = isinstance(part, dict) and depth < _MAX_DEPTH
    return _part_text(part, notes, depth + 1) if is_part else json_text(part)


def _part_text(part: Mapping[str, Any], notes: ReplayNotes, depth: int) -> str:
    kind = part_type(part)
    if kind in NON_TEXT_PARTS:
        notes.add(Degradation.IMAGE)
        return f"(Here was {NON_TEXT_PARTS[kind]}, which this model cannot see.)"
    notes.add(Degradation.FOREIGN_PART)
    texts = (stand_in_text(part.get(key), notes, depth) for key in _TEXT_KEYS)
    return "" if kind in ENCRYPTED_PARTS else next(filter(None, texts), "") or _fields_text(part)


def _fields_text(part: Mapping[str, Any]) -> str:
    """Return the fields of a part without a text as JSON; "" if it has none but its type."""
    readable = part.keys() - _OPAQUE_KEYS
    shown = {key: part[key] for key in part if key in readable and part[key] not in _EMPTY}
    return json_text(shown) if shown.keys() - {"type"} else ""


def json_text(value: Any) -> str:
    """Return a value as JSON. Raises `RequestError` if it is nested too deeply."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise RequestError("the body is nested too deeply.") from None


def arguments_text(value: Any) -> str:
    """Return the arguments of a call as text: a text as it is, none as "", any other value as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json_text(value)


def text_or(value: Any, default: str) -> str:
    """Return a text that is not empty; `default` for any other value."""
    return value if isinstance(value, str) and value else default


def text_of(value: Any, notes: ReplayNotes) -> str:
    """Return a field that should be a text as one."""
    if isinstance(value, str):
        return value
    notes.add(Degradation.MESSAGE_FORM)
    return "" if value is None else json_text(value)


def role_of(role: Any, notes: ReplayNotes) -> str:
    """Return the role here of a role of another server."""
    known = ROLE_NAMES.get(role.strip().lower(), "user") if isinstance(role, str) else "user"
    if known != role:
        notes.add(Degradation.MESSAGE_FORM)
    return known
