"""Read an earlier message of a Messages request that cannot be read as it was sent (see `replayed_parts`).

It becomes a message of the same wire format, in which a text block replaces each block that cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from openclaw_rl.errors import RequestError
from openclaw_rl.render.degradation import Degradation, read_arguments
from openclaw_rl.serve.dialects.anthropic_input import read_message
from openclaw_rl.serve.dialects.replayed_chat import ReplayedMessages
from openclaw_rl.serve.dialects.replayed_parts import (
    REASONING_PARTS,
    UNNAMED_TOOL,
    ReplayNotes,
    role_of,
    stand_in_text,
    text_or,
)
from openclaw_rl.serve.dialects.validation import decode_json, part_type
from openclaw_rl.store.rows import to_json

_ROLES: Mapping[str, str] = {"tool": "user", "developer": "system"}
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def read_replayed_message(raw: bytes, place: str) -> ReplayedMessages:
    """Return the chat messages of an earlier message; none for null. Raises `RequestError` if it is no JSON."""
    value = decode_json(_decoder, raw, place)
    notes = ReplayNotes()
    if not isinstance(value, dict):
        notes.add(Degradation.MESSAGE_FORM)
        value = {"role": "user", "content": stand_in_text(value, notes)}
        if not value["content"]:
            return ReplayedMessages([], notes.kinds)
    role = role_of(value.get("role"), notes)
    role = _ROLES.get(role, role)
    content = value.get("content")
    if not isinstance(content, str):
        content = _read_content(content, role, notes)
    messages = read_message(to_json({"role": role, "content": content}), place)
    return ReplayedMessages(messages, notes.kinds)


def _read_content(content: Any, role: str, notes: ReplayNotes) -> str | list[dict[str, Any]]:
    if not isinstance(content, list):
        notes.add(Degradation.MESSAGE_FORM)
        content = [content]
    read = [_read_block(one, role, notes) for one in content]
    blocks = [block for block in read if block is not None]
    if not blocks:
        notes.add(Degradation.MESSAGE_FORM)
    return blocks or ""


def _read_block(block: Any, role: str, notes: ReplayNotes) -> dict[str, Any] | None:
    """Return a block that can be read in a message of `role`; None if nothing of it can be."""
    if _can_read(block, role):
        return dict(block)
    repair = _REPAIRS.get(part_type(block))
    repaired = repair(block, notes) if repair else None
    if repaired is not None and _can_read(repaired, role):
        return repaired
    return _stand_in_block(block, role, notes)


def _stand_in_block(block: Any, role: str, notes: ReplayNotes) -> dict[str, Any] | None:
    notes.add(Degradation.FOREIGN_PART)
    text = stand_in_text(block, notes)
    if not text:
        return None
    if role == "assistant" and part_type(block) in REASONING_PARTS:
        return {"type": "thinking", "thinking": text}
    return {"type": "text", "text": text}


def _can_read(block: Any, role: str) -> bool:
    try:
        read_message(to_json({"role": role, "content": [block]}), "messages")
    except RequestError:
        return False
    return True


def _read_call(block: Mapping[str, Any], notes: ReplayNotes) -> dict[str, Any]:
    notes.add(Degradation.CALL_FORM)
    return {
        "type": "tool_use",
        "id": text_or(block.get("id"), "call"),
        "name": text_or(block.get("name"), UNNAMED_TOOL),
        "input": read_arguments(block.get("input")),
    }


def _read_result(block: Mapping[str, Any], notes: ReplayNotes) -> dict[str, Any]:
    notes.add(Degradation.CALL_FORM)
    content = block.get("content")
    changed: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": text_or(block.get("tool_use_id"), ""),
        "content": content,
        "is_error": block.get("is_error") is True,
    }
    if not _can_read(changed, "user"):
        changed["content"] = stand_in_text(content, notes)
    return changed


_REPAIRS: Mapping[str, Callable[[Mapping[str, Any], ReplayNotes], dict[str, Any]]] = {
    "tool_use": _read_call,
    "tool_result": _read_result,
}
"""Type of a block -> reader of a block of that type that cannot be read as it was sent."""
