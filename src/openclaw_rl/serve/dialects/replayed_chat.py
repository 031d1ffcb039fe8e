"""Read an earlier message of a Chat Completions request that cannot be read as it was sent (see `replayed_parts`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from openclaw_rl.errors import RequestError
from openclaw_rl.render.degradation import Degradation
from openclaw_rl.serve.dialects.replayed_parts import (
    REASONING_PARTS,
    UNNAMED_TOOL,
    ReplayNotes,
    arguments_text,
    role_of,
    stand_in_text,
    text_of,
    text_or,
)
from openclaw_rl.serve.dialects.validation import (
    OPTIONAL_TEXTS,
    check_part,
    check_tool_calls,
    decode_json,
    part_type,
    read_parts,
)

_ARGUMENT_KEYS = ("arguments", "input", "args", "parameters")
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class ReplayedMessages(NamedTuple):
    """Messages of one earlier message, and what reading it took."""

    messages: list[dict[str, Any]]
    degraded: tuple[Degradation, ...]


def read_replayed_message(raw: bytes, place: str) -> ReplayedMessages:
    """Return an earlier message as one that can be read; none for null. Raises `RequestError` if it is no JSON."""
    value = decode_json(_decoder, raw, place)
    notes = ReplayNotes()
    if not isinstance(value, dict):
        notes.add(Degradation.MESSAGE_FORM)
        text = stand_in_text(value, notes)
        messages = [{"role": "user", "content": text}] if text else []
        return ReplayedMessages(messages, notes.kinds)
    return ReplayedMessages([_read_message(value, notes)], notes.kinds)


def _read_message(value: dict[str, Any], notes: ReplayNotes) -> dict[str, Any]:
    message = {**value, "role": role_of(value.get("role"), notes)}
    for key in OPTIONAL_TEXTS:
        if message.get(key) is not None:
            message[key] = text_of(message[key], notes)
    content = message.get("content")
    if isinstance(content, list):
        _read_content(message, content, notes)
    elif content is not None and not isinstance(content, str):
        notes.add(Degradation.MESSAGE_FORM)
        message["content"] = stand_in_text(content, notes)
    if message.get("tool_calls") is not None:
        message["tool_calls"] = _read_calls(message["tool_calls"], notes)
    return read_parts(message)


def _read_content(message: dict[str, Any], content: list[Any], notes: ReplayNotes) -> None:
    """Replace the parts that cannot be read; the reasoning of a reply goes to where it is read."""
    parts: list[Any] = []
    thoughts: list[str] = []
    for part in content:
        if _can_read(part, message["role"]):
            parts.append(part)
            continue
        notes.add(Degradation.FOREIGN_PART)
        text = stand_in_text(part, notes)
        if message["role"] == "assistant" and part_type(part) in REASONING_PARTS:
            thoughts.append(text)
        elif text:
            parts.append({"type": "text", "text": text})
    message["content"] = parts
    if thoughts:
        message.setdefault("reasoning_content", "".join(thoughts))


def _can_read(part: Any, role: str) -> bool:
    if isinstance(part, str):
        return True
    (ready,) = read_parts({"role": role, "content": [part]})["content"]
    try:
        check_part(ready, "content", role)
    except RequestError:
        return False
    return True


def _read_calls(calls: Any, notes: ReplayNotes) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        notes.add(Degradation.CALL_FORM)
        calls = [calls]
    readable = [call for call in calls if isinstance(call, dict)]
    if len(readable) < len(calls):
        notes.add(Degradation.CALL_FORM)
    return [_read_call(call, notes) for call in readable]


def _read_call(call: Mapping[str, Any], notes: ReplayNotes) -> dict[str, Any]:
    try:
        check_tool_calls([call], "tool_calls")
    except RequestError:
        notes.add(Degradation.CALL_FORM)
    else:
        return dict(call)
    return {
        "id": text_or(call.get("id"), ""),
        "type": "function",
        "function": _read_function(call.get("function"), call),
    }


def _read_function(function: Any, call: Mapping[str, Any]) -> dict[str, Any]:
    # Some servers put name and arguments beside the id.
    fields = function if isinstance(function, dict) else call
    arguments = next((fields[key] for key in _ARGUMENT_KEYS if key in fields), None)
    if not isinstance(arguments, dict):
        arguments = arguments_text(arguments)
    return {"name": text_or(fields.get("name"), UNNAMED_TOOL), "arguments": arguments}
