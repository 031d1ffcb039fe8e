"""Tools and `tool_choice` of a Messages request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from openclaw_rl.serve.chat_request import field_error
from openclaw_rl.serve.dialects.prompt_tools import PromptTools
from openclaw_rl.serve.dialects.validation import decode_json, printable_header


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


def read_tools(raw: bytes, place: str) -> PromptTools:
    """Return the tools in chat format. Raises `RequestError` that names the tool."""
    tools = PromptTools()
    for index, tool in enumerate(decode_json(_tools_decoder, raw or b"null", place) or ()):
        where, kind = f"{place}[{index}]", tool.type or "custom"
        known = next((k for start, k in _CLIENT_TOOLS.items() if kind.startswith(start)), None)
        if kind != "custom" and known is None and tool.input_schema is None:
            tools.ignored.append(f"the tool {printable_header(kind)} ({_ignored_reason(kind)})")
            continue
        if not tool.name:
            raise field_error(f"{where}.name", "expected a string that is not empty.")
        if tool.input_schema is None and known is None:
            raise field_error(f"{where}.input_schema", "expected a JSON schema.")
        words, schema = known or ("", {})
        tools.add(_chat_tool(tool.name, tool.description or words, tool.input_schema or schema), where)
    return tools


def _ignored_reason(kind: str) -> str:
    if kind.startswith(_SCREEN_TOOL_PREFIXES):
        return "this model cannot see screens"
    return "only Anthropic's servers run it"


def _chat_tool(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def plain_choice(choice: AnthropicToolChoice | None) -> Any:
    """Return `tool_choice` as `PromptTools.read_choice` expects it; it takes the name from the key `name`."""
    if choice is None or choice.type == "tool":
        return choice and {"name": str(choice.name)}
    return "required" if choice.type == "any" else choice.type
