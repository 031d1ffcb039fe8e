"""Read an earlier item of a Responses request that cannot be read as it was sent (see `replayed_parts`).

It becomes an item of the same wire format: its fields, or its text as a message, replace what cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from openclaw_rl.render.degradation import Degradation, read_arguments
from openclaw_rl.serve.dialects.replayed_parts import (
    ENCRYPTED_PARTS,
    REASONING_PARTS,
    UNNAMED_TOOL,
    ReplayNotes,
    arguments_text,
    role_of,
    stand_in_text,
    text_or,
)
from openclaw_rl.serve.dialects.validation import part_type

Item = dict[str, Any]
ItemCheck = Callable[[Item], bool]
"""Whether an item can be read."""
_ROLES: Mapping[str, str] = {"tool": "user"}


def read_replayed_item(item: Any, can_read: ItemCheck, notes: ReplayNotes) -> Item | None:
    """Return an earlier item as one that can be read; None if nothing of it can be."""
    if not isinstance(item, dict):
        notes.add(Degradation.MESSAGE_FORM)
        return _message("user", stand_in_text(item, notes))
    kind = item.get("type") or ("message" if "role" in item else "")
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is not None:
        changed = read(item, can_read, notes)
        if can_read(changed):
            return changed
    return _read_foreign(item, notes)


def _message(role: str, text: str) -> Item | None:
    return {"type": "message", "role": role, "content": text} if text else None


def _read_foreign(item: Item, notes: ReplayNotes) -> Item | None:
    """Return an item of another server as a call, as a result, or as text."""
    notes.add(Degradation.FOREIGN_PART)
    call_id = item.get("call_id")
    if isinstance(call_id, str) and "output" in item:
        return _result(call_id, stand_in_text(item["output"], notes))
    if isinstance(call_id, str) and isinstance(item.get("name"), str):
        return _call(call_id, item["name"], item.get("arguments", item.get("input")))
    role = "user" if item.get("role") == "user" else "assistant"
    return _message(role, stand_in_text(item, notes))


def _read_message(item: Item, can_read: ItemCheck, notes: ReplayNotes) -> Item:
    role = role_of(item.get("role"), notes)
    changed = {**item, "type": "message", "role": _ROLES.get(role, role)}
    content = item.get("content")
    if isinstance(content, list):
        read = [_read_part(one, changed, can_read, notes) for one in content]
        changed["content"] = [part for part in read if part]
    elif not isinstance(content, str):
        notes.add(Degradation.MESSAGE_FORM)
        changed["content"] = stand_in_text(content, notes)
    return changed


def _read_part(
    part: Any, message: Item, can_read: ItemCheck, notes: ReplayNotes
) -> dict[str, Any] | None:
    if can_read({**message, "content": [part]}):
        return dict(part)
    notes.add(Degradation.FOREIGN_PART)
    hidden = part_type(part) in ENCRYPTED_PARTS | REASONING_PARTS
    text = "" if hidden else stand_in_text(part, notes)
    return {"type": "input_text", "text": text} if text else None


def _read_call(item: Item, can_read: ItemCheck, notes: ReplayNotes) -> Item:
    notes.add(Degradation.CALL_FORM)
    changed = _call(_call_id(item), item.get("name"), item.get("arguments", item.get("input")))
    if isinstance(item.get("namespace"), str):
        changed["namespace"] = item["namespace"]
    return {**changed, "id": item.get("id")}


def _read_custom_call(item: Item, can_read: ItemCheck, notes: ReplayNotes) -> Item:
    changed = _read_call(item, can_read, notes)
    text = arguments_text(item.get("input", item.get("arguments")))
    return {**changed, "type": "custom_tool_call", "input": text}


def _read_shell_call(item: Item, can_read: ItemCheck, notes: ReplayNotes) -> Item:
    notes.add(Degradation.CALL_FORM)
    action = read_arguments(item.get("action"))
    return {**item, "call_id": _call_id(item), "action": action}


def _read_output(item: Item, can_read: ItemCheck, notes: ReplayNotes) -> Item:
    notes.add(Degradation.CALL_FORM)
    changed = _result(_call_id(item), item.get("output"))
    if not can_read(changed):
        changed["output"] = stand_in_text(item.get("output"), notes)
    return changed


def _read_reasoning(item: Item, can_read: ItemCheck, notes: ReplayNotes) -> Item:
    notes.add(Degradation.FOREIGN_PART)
    text = stand_in_text([item.get("content"), item.get("summary")], notes)
    parts = [{"type": "reasoning_text", "text": text}] if text else []
    return {"type": "reasoning", "id": item.get("id"), "content": parts}


def _call_id(item: Mapping[str, Any]) -> str:
    return next((item[key] for key in ("call_id", "id") if isinstance(item.get(key), str)), "")


def _call(call_id: str, name: Any, arguments: Any) -> Item:
    return {
        "type": "function_call",
        "call_id": call_id,
        "name": text_or(name, UNNAMED_TOOL),
        "arguments": arguments_text(arguments),
    }


def _result(call_id: str, output: Any) -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


_READERS: Mapping[str, Callable[[Item, ItemCheck, ReplayNotes], Item]] = {
    "message": _read_message,
    "reasoning": _read_reasoning,
    "function_call": _read_call,
    "custom_tool_call": _read_custom_call,
    "local_shell_call": _read_shell_call,
    "function_call_output": _read_output,
    "custom_tool_call_output": _read_output,
    "local_shell_call_output": _read_output,
}
"""Type of an item -> reader of an item of that type that cannot be read as it was sent."""
