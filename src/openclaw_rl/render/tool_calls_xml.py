"""Tool calls of Qwen3-Coder and Qwen3.5: arguments in tags, with types from the tool's schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from openclaw_rl.render.reply_parser import ToolCall
from openclaw_rl.render.tool_calls import CALL, END_CALL, CallMatch, CallReader, ToolList, make_call

_OPEN = "<function="
_CLOSE = "</function>"
_FUNCTION_PATTERN = re.compile(r"\s*<function=([^>\n]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER_PATTERN = re.compile(
    r"\s*<parameter=([^>\n]+)>\n?(.*?)(?:\n?</parameter>\s*(?=<parameter=|\Z)|\n(?=<parameter=)|\Z)",
    re.DOTALL,
)
_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}
# Templates write earlier calls with Python literals.
_PYTHON_LITERALS = {"True": True, "False": False, "None": None}


class XmlCallReader(CallReader):
    """`<tool_call><function=f><parameter=x>...</parameter></function></tool_call>`.

    The opening tag of a call and the closing tag of a value are optional, because models forget them. A value is the
    text between its tags. It is converted if it is JSON of a type that the tool's schema allows, otherwise it stays a
    string. Without a schema only objects and arrays are converted.
    """

    openers = (CALL, _OPEN)
    closer = END_CALL

    def __init__(self, tools: ToolList) -> None:
        functions = [t.get("function") or {} for t in tools]
        self._schemas = {f.get("name"): f.get("parameters") or {} for f in functions}

    def read(self, text: str) -> CallMatch | None:
        """A closing tag inside a parameter does not end the call."""
        start = 0
        end = _CLOSE
        if text.startswith(CALL):
            start = len(CALL)
            end = END_CALL
        at = text.find(end)
        while at >= 0 and _is_inside_parameter(text[start:at], end):
            at = text.find(end, at + 1)
        if at < 0:
            return None
        body = text[start:at] if start else text[: at + len(end)]
        call = self._parse_call(body)
        if call is not None:
            return CallMatch(at + len(end), (call,))
        return CallMatch(len(CALL) if start else len(_OPEN))

    def _parse_call(self, body: str) -> ToolCall | None:
        function = _FUNCTION_PATTERN.fullmatch(body)
        if function is None:
            return None
        name = function[1].strip()
        inner = function[2].rstrip()
        place = 0
        properties = self._schema_properties(name)
        arguments: dict[str, Any] = {}
        while parameter := _PARAMETER_PATTERN.match(inner, place):
            key = parameter[1].strip()
            arguments[key] = convert_value(parameter[2], properties.get(key))
            place = parameter.end()
        if inner[place:].strip():
            return None
        return make_call(name, json.dumps(arguments, ensure_ascii=False))

    def _schema_properties(self, name: str) -> Mapping[str, Any]:
        schema = self._schemas.get(name)
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        return properties if isinstance(properties, Mapping) else {}


def _is_inside_parameter(body: str, end: str) -> bool:
    """Whether `body` ends inside a parameter; one that was only not closed before </function> does not count."""
    opened = body.rfind("<parameter=") > body.rfind("</parameter>")
    return opened and end == END_CALL and not body.rstrip().endswith(_CLOSE)


def convert_value(text: str, schema: Any) -> Any:
    """Convert `text` to the type that a JSON schema allows; return it unchanged if it is a string or unknown."""
    try:
        value = _PYTHON_LITERALS[text] if text in _PYTHON_LITERALS else msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text
    names = _allowed_types(schema) or frozenset({"object", "array"})
    fits = any(type(value) in _PYTHON_TYPES.get(name, ()) for name in names)
    return value if fits else text


def _allowed_types(schema: Any, depth: int = 0) -> frozenset[str]:
    """Return the names of the types that a schema allows; empty if it does not specify any."""
    if not isinstance(schema, Mapping) or depth > 8:
        return frozenset()
    stated = schema.get("type")
    names = stated if isinstance(stated, list) else [stated]
    types = {name for name in names if isinstance(name, str)}
    for key in ("anyOf", "oneOf", "allOf"):
        for part in _list_of(schema, key):
            types |= _allowed_types(part, depth + 1)
    if not types:
        types.update(*map(_names_of_type, _list_of(schema, "enum")))
    return frozenset(types)


def _list_of(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _names_of_type(value: Any) -> set[str]:
    """Return the names that a JSON schema has for the type of a value."""
    if isinstance(value, str):
        return {"string"}
    return {name for name, kinds in _PYTHON_TYPES.items() if type(value) in kinds}
