"""Tools and `tool_choice` of a Messages request."""

from __future__ import annotations

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
        where = f"{place}[{index}]"
        kind = tool.type or "custom"
        known = next(
            (t for start, t in CLIENT_TOOLS["anthropic"].items() if kind.startswith(start)), None
        )
        if kind != "custom" and known is None and tool.input_schema is None:
            on_screen = kind.startswith(_SCREEN_TOOL_PREFIXES)
            reason = (
                "this model cannot see screens" if on_screen else "only Anthropic's servers run it"
            )
            tools.ignored.append(f"the tool {printable_header(kind)} ({reason})")
            continue
        if not tool.name:
            raise field_error(f"{where}.name", "expected a string that is not empty.")
        if tool.input_schema is None and known is None:
            raise field_error(f"{where}.input_schema", "expected a JSON schema.")
        default = known or {"description": "", "parameters": {}}
        sent = {"description": tool.description, "parameters": tool.input_schema}
        function = {
            "name": tool.name,
            **default,
            **{key: value for key, value in sent.items() if value},
        }
        tools.add({"type": "function", "function": function}, where)
    return tools


def plain_choice(choice: AnthropicToolChoice | None) -> Any:
    """Return `tool_choice` as `PromptTools.read_choice` expects it; it takes the name from the key `name`."""
    if choice is None or choice.type == "tool":
        return choice and {"name": str(choice.name)}
    return "required" if choice.type == "any" else choice.type
