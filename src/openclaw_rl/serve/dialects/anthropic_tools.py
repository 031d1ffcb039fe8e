"""Tools and `tool_choice` of a Messages request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from openclaw_rl.serve.chat_request import field_error
from openclaw_rl.serve.dialects.prompt_tools import CLIENT_TOOLS, PromptTools
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


_SCREEN_TOOL_PREFIXES = ("computer_", "browser_toolset_")

_tools_decoder = msgspec.json.Decoder(list[AnthropicTool] | None)


def read_tools(raw: bytes, place: str) -> PromptTools:
    """Return the tools in chat format. Raises `RequestError` that names the tool."""
    tools = PromptTools()
    for index, tool in enumerate(decode_json(_tools_decoder, raw or b"null", place) or ()):
        _add_tool(tools, tool, f"{place}[{index}]")
    return tools


def _add_tool(tools: PromptTools, tool: AnthropicTool, place: str) -> None:
    kind = tool.type or "custom"
    client_tool = _client_tool(kind)
    has_schema = tool.input_schema is not None or client_tool is not None
    if not has_schema and kind != "custom":
        tools.ignored.append(f"the tool {printable_header(kind)} ({_unusable_reason(kind)})")
        return
    if not tool.name:
        raise field_error(f"{place}.name", "expected a string that is not empty.")
    if not has_schema:
        raise field_error(f"{place}.input_schema", "expected a JSON schema.")
    tools.add({"type": "function", "function": _prompt_function(tool, client_tool or {})}, place)


def _prompt_function(tool: AnthropicTool, client_tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the function that the prompt has for a tool: as it is sent, else as `client_tool` has it."""
    function = {"name": tool.name, "description": "", "parameters": {}, **client_tool}
    if tool.description:
        function["description"] = tool.description
    if tool.input_schema:
        function["parameters"] = tool.input_schema
    return function


def _client_tool(kind: str) -> Mapping[str, Any] | None:
    """Return the definition of a tool that clients run and requests name without a schema; None for others."""
    for prefix, definition in CLIENT_TOOLS["anthropic"].items():
        if kind.startswith(prefix):
            return definition
    return None


def _unusable_reason(kind: str) -> str:
    if kind.startswith(_SCREEN_TOOL_PREFIXES):
        return "this model cannot see screens"
    return "only Anthropic's servers run it"


def plain_choice(choice: AnthropicToolChoice | None) -> Any:
    """Return `tool_choice` as `PromptTools.read_choice` expects it; it takes the name from the key `name`."""
    if choice is None or choice.type == "tool":
        return choice and {"name": str(choice.name)}
    return "required" if choice.type == "any" else choice.type
