"""Tools and `tool_choice` of a Messages request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from openclaw_rl.serve.chat_request import ResponseConstraint
from openclaw_rl.serve.dialects.validation import check_tool_name, decode_json, field_error, printable_header


class AnthropicTool(msgspec.Struct):
    """Tool definition of any type."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class AnthropicToolChoice(msgspec.Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def _object_schema(required: Sequence[str], **properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


_STRING, _NUMBER = {"type": "string"}, {"type": "integer"}
_FILE_KEYS: Mapping[str, Mapping[str, Any]] = {
    "path": _STRING,
    "file_text": _STRING,
    "old_str": _STRING,
    "new_str": _STRING,
    "insert_line": _NUMBER,
    "insert_text": _STRING,
    "view_range": {"type": "array", "items": _NUMBER},
}
_FILE_COMMANDS = ["view", "create", "str_replace", "insert"]
_CLIENT_TOOLS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "bash_": (
        "Runs a command in a bash shell that is kept between calls; `restart` begins a new one.",
        _object_schema((), command=_STRING, restart={"type": "boolean"}),
    ),
    "text_editor_": (
        "Views, creates and edits text files.",
        _object_schema(("command", "path"), command={"type": "string", "enum": _FILE_COMMANDS}, **_FILE_KEYS),
    ),
    "memory_": (
        "Views and edits the files of the memory folder, /memories.",
        _object_schema(
            ("command",),
            command={"type": "string", "enum": [*_FILE_COMMANDS, "delete", "rename"]},
            old_path=_STRING,
            new_path=_STRING,
            **_FILE_KEYS,
        ),
    ),
}
"""(description, schema) of Anthropic's client-side tools, which requests name without a schema. Key: type prefix."""
_SCREEN_TOOL_PREFIXES = ("computer_", "browser_toolset_")

_tools_decoder = msgspec.json.Decoder(list[AnthropicTool] | None)


def read_tools(raw: bytes) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the tools in chat format, and descriptions of the ignored ones. Raises `RequestError`."""
    shown: list[dict[str, Any]] = []
    ignored: list[str] = []
    names: set[str] = set()
    for index, tool in enumerate((decode_json(_tools_decoder, raw, "tools") if raw else None) or ()):
        kind = tool.type or "custom"
        known = next((k for start, k in _CLIENT_TOOLS.items() if kind.startswith(start)), None)
        if kind != "custom" and known is None and tool.input_schema is None:
            ignored.append(f"the tool {printable_header(kind)} ({_ignored_reason(kind)})")
            continue
        if not tool.name:
            raise field_error(f"tools[{index}].name", f"tools[{index}].name: expected a string that is not empty.")
        if tool.input_schema is None and known is None:
            raise field_error(f"tools[{index}].input_schema", f"tools[{index}].input_schema: expected a JSON schema.")
        check_tool_name(tool.name, names, f"tools[{index}]")
        names.add(tool.name)
        description, schema = known or ("", {})
        shown.append(_chat_function(tool.name, tool.description or description, tool.input_schema or schema))
    return shown, tuple(ignored)


def _ignored_reason(kind: str) -> str:
    if kind.startswith(_SCREEN_TOOL_PREFIXES):
        return "this model cannot see screens"
    return "only Anthropic's servers run it"


def _chat_function(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def required_tools(choice: AnthropicToolChoice | None, tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names of the tools of which the reply must call one; empty if it need not. Raises `RequestError`."""
    if choice is None or choice.type in ("auto", "none"):
        return ()
    names = tuple(tool["function"]["name"] for tool in tools)
    if choice.type == "any":
        if not names:
            raise field_error("tool_choice", "tool_choice: any requires at least one tool in tools.")
        return names
    if choice.type != "tool":
        raise field_error(
            "tool_choice.type", f"tool_choice.type: expected auto, any, tool or none, got {choice.type[:40]!r}."
        )
    if choice.name not in names:
        raise field_error("tool_choice.name", f"tool_choice.name: {str(choice.name)[:80]!r} is not in tools.")
    return (str(choice.name),)


def reply_constraint(calls: tuple[str, ...], schema: Mapping[str, Any] | None, place: str) -> ResponseConstraint | None:
    """Return the constraint on the reply, or None. `place`: the field of the schema."""
    if not calls and schema is None:
        return None
    return ResponseConstraint(tool_names=calls, schema=schema, request_field="tool_choice" if schema is None else place)
