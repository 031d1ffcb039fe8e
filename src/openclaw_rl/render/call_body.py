"""The JSON of a tool call: strict as the model was taught, else as models really write it."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from openclaw_rl.render.lenient_json import read_values
from openclaw_rl.render.reply_parser import ToolCall

# Ids only have to be unique.
_id_generator = random.Random(random.SystemRandom().getrandbits(256))
ToolList = Sequence[Mapping[str, Any]]
"""Tool definitions in the format of chat completions."""
_ARGUMENT_KEYS = ("arguments", "parameters")
_OTHER_KEYS = frozenset({"name", "function", "id", "type", *_ARGUMENT_KEYS})


def new_call_id() -> str:
    return f"call_{_id_generator.getrandbits(96):024x}"


class _CallBody(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"")


_body_decoder = msgspec.json.Decoder(_CallBody)
_bodies_decoder = msgspec.json.Decoder(list[_CallBody])
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _arguments_text(raw: bytes) -> str | None:
    """Return the JSON text of an arguments object as the model wrote it; None if it is not an object."""
    try:
        value = msgspec.json.decode(raw)
        # Some models encode the arguments as a JSON string.
        if isinstance(value, str):
            raw = _to_bytes(value)
            value = msgspec.json.decode(raw)
        return raw.decode("utf-8") if isinstance(value, dict) else None
    except _DECODE_ERRORS:
        return None


def make_call(name: str, arguments: str | bytes) -> ToolCall | None:
    """Return a call; None unless it has a name and its arguments are a JSON object."""
    text = _arguments_text(arguments if isinstance(arguments, bytes) else _to_bytes(arguments))
    return None if text is None or not name else ToolCall(new_call_id(), name, text)


def _call_from_body(body: _CallBody) -> ToolCall | None:
    return make_call(body.name, bytes(body.arguments) or bytes(body.parameters))


def calls_of_array(body: str) -> tuple[ToolCall, ...]:
    """Return the calls of a JSON array as the model was taught to write it; empty if it is anything else."""
    try:
        calls = [_call_from_body(call) for call in _bodies_decoder.decode(_to_bytes(body))]
    except _DECODE_ERRORS:
        return ()
    valid = tuple(call for call in calls if call is not None)
    return valid if len(valid) == len(calls) else ()


def named_call(
    name: str, arguments: str, names: Collection[str], *, may_complete: bool = False
) -> ToolCall | None:
    """Return the call of a function with JSON arguments; mended ones only for a declared function.

    `may_complete`: closing brackets that are missing at the end are added.
    """
    call = make_call(name, arguments)
    if call is not None or name not in names:
        return call
    mended = read_arguments(arguments, may_complete=may_complete)
    return None if mended is None else ToolCall(new_call_id(), name, mended)


def parse_call(body: str) -> ToolCall | None:
    """Parse a call from `{"name": ..., "arguments": {...}}` (or `parameters`); None if it is anything else."""
    try:
        return _call_from_body(_body_decoder.decode(_to_bytes(body)))
    except _DECODE_ERRORS:
        return None


def tool_names(tools: ToolList) -> frozenset[str]:
    """Return the names of the declared functions."""
    functions = [tool.get("function") for tool in tools]
    names = [one.get("name") for one in functions if isinstance(one, Mapping)]
    return frozenset(name for name in names if isinstance(name, str))


def read_calls(
    body: str, names: Collection[str], *, may_complete: bool = False
) -> tuple[ToolCall, ...]:
    """Return the calls that are the whole body; empty if it is anything else.

    A body that is not what the model was taught is mended only if it calls declared functions (`names`).
    `may_complete`: closing brackets that are missing at the end are added.
    """
    call = parse_call(body)
    if call is not None:
        return (call,)
    values = read_values(body, may_complete=may_complete)
    if values is None:
        return ()
    return calls_of_values(values, names)


def calls_of_values(values: Sequence[Any], names: Collection[str]) -> tuple[ToolCall, ...]:
    """Return the calls of JSON objects, and of the items of lists; empty unless each calls a declared function."""
    items: list[Any] = []
    for value in values:
        items += value if isinstance(value, list) else [value]
    calls = [_call_of_object(item, names) for item in items]
    valid = tuple(call for call in calls if call is not None)
    return valid if len(valid) == len(calls) else ()


def _call_of_object(item: Any, names: Collection[str]) -> ToolCall | None:
    if not isinstance(item, dict):
        return None
    inner = item.get("function")
    if isinstance(inner, dict):
        return _call_of_object(inner, names)
    name = item.get("name", inner)
    if not isinstance(name, str) or name not in names:
        return None
    arguments = _arguments_in(item)
    return None if arguments is None else ToolCall(new_call_id(), name, arguments)


def _arguments_in(item: Mapping[str, Any]) -> str | None:
    """Return the arguments of a call. Without a key for them, other keys may be meant as arguments."""
    for key in _ARGUMENT_KEYS:
        if key in item:
            return arguments_of_value(item[key])
    return "{}" if _OTHER_KEYS.issuperset(item) else None


def arguments_of_value(value: Any) -> str | None:
    """Return the JSON text of arguments; None if they are no object. Nothing means no arguments."""
    if isinstance(value, str):
        return read_arguments(value)
    if value is None:
        return "{}"
    return to_json(value) if isinstance(value, dict) else None


def read_arguments(text: str, *, may_complete: bool = False) -> str | None:
    """Return the JSON text of an arguments object, mended if that is clear; None if it is anything else."""
    strict = _arguments_text(_to_bytes(text))
    if strict is not None:
        return strict
    values = read_values(text, may_complete=may_complete) if text.strip() else [{}]
    if values is None or len(values) != 1 or not isinstance(values[0], dict):
        return None
    return to_json(values[0])


def to_json(value: Any) -> str:
    """Return JSON text."""
    return json.dumps(value, ensure_ascii=False)
