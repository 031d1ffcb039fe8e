"""Read an earlier message of a Messages request that cannot be read as it was sent (see `replayed_parts`).

It becomes a message of the same wire format, in which a text block replaces each block that cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from openclaw_rl.errors import RequestError
from openclaw_rl.render.degradation import Degradation, read_arguments
from openclaw_rl.serve.dialects.anthropic_input import read_message
from openclaw_rl.serve.dialects.replayed_chat import ReplayedMessages
from openclaw_rl.serve.dialects.replayed_parts import (
    ENCRYPTED_PARTS,
    REASONING_PARTS,
    UNNAMED_TOOL,
    ReplayNotes,
    role_of,
    stand_in_text,
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
    blocks = [block for one in content if (block := _read_block(one, role, notes)) is not None]
    if not blocks:
        notes.add(Degradation.MESSAGE_FORM)
    return blocks or ""


def _read_block(block: Any, role: str, notes: ReplayNotes) -> dict[str, Any] | None:
    """Return a block that can be read in a message of `role`; None if nothing of it can be."""
    if isinstance(block, dict) and _can_read(block, role):
        return block
    kind = part_type(block)
    if kind in ("tool_use", "tool_result"):
        read = _read_call if kind == "tool_use" else _read_result
        changed = read(block, notes)
        if _can_read(changed, role):
            return changed
    notes.add(Degradation.FOREIGN_PART)
    text = "" if kind in ENCRYPTED_PARTS else stand_in_text(block, notes)
    if not text:
        return None
    if role == "assistant" and kind in REASONING_PARTS:
        return {"type": "thinking", "thinking": text}
    return {"type": "text", "text": text}


def _can_read(block: Mapping[str, Any], role: str) -> bool:
    try:
        read_message(to_json({"role": role, "content": [block]}), "messages")
    except RequestError:
        return False
    return True


def _read_call(block: Mapping[str, Any], notes: ReplayNotes) -> dict[str, Any]:
    notes.add(Degradation.CALL_FORM)
    id_ = block.get("id")
    name = block.get("name")
    return {
        "type": "tool_use",
        "id": id_ if isinstance(id_, str) and id_ else "call",
        "name": name if isinstance(name, str) and name else UNNAMED_TOOL,
        "input": read_arguments(block.get("input")),
    }


def _read_result(block: Mapping[str, Any], notes: ReplayNotes) -> dict[str, Any]:
    notes.add(Degradation.CALL_FORM)
    id_ = block.get("tool_use_id")
    content = block.get("content")
    changed: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": id_ if isinstance(id_, str) else "",
        "content": content,
        "is_error": block.get("is_error") is True,
    }
    if not _can_read(changed, "user"):
        changed["content"] = stand_in_text(content, notes)
    return changed
