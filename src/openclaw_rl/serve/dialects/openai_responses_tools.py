"""Tools of a Responses request, and the mapping from prompt names back to the client's tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from openclaw_rl.serve.chat_request import field_error
from openclaw_rl.serve.dialects.prompt_tools import CLIENT_TOOLS, PromptTools
from openclaw_rl.serve.dialects.validation import decode_json, printable_header

LOCAL_SHELL = "local_shell"
CUSTOM_TOOL_PARAMETERS: Mapping[str, Any] = CLIENT_TOOLS["openai"]["custom"]["parameters"]
"""Parameters of a custom tool in the prompt: one string."""
_NO_PARAMETERS = {"type": "object", "properties": {}}
_tools_decoder = msgspec.json.Decoder(list[dict[str, Any]] | None)


@dataclass(frozen=True, slots=True)
class ToolOrigin:
    """The client's tool behind a name in the prompt."""

    # function, custom or local_shell
    kind: str
    name: str
    namespace: str | None = None


@dataclass
class Toolbox(PromptTools):
    """Tools of a request. `origins`: by the name in the prompt; `echo`: as the response repeats them."""

    origins: dict[str, ToolOrigin] = field(default_factory=dict)
    echo: list[dict[str, Any]] = field(default_factory=list)


def prompt_name(name: str, namespace: str | None) -> str:
    """Return the prompt name of a tool: its namespace and its name, the same in every request."""
    if not namespace:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


def read_tools(raw: bytes, place: str) -> Toolbox:
    """Decode the tools. Raises `RequestError` that names the tool."""
    box = Toolbox()
    for index, tool in enumerate(decode_json(_tools_decoder, raw or b"null", place) or ()):
        _add_tool(box, tool, f"{place}[{index}]", None)
        is_function = tool.get("type") == "function"
        box.echo.append({"strict": None, "parameters": None} | tool if is_function else tool)
    return box


def _add_tool(box: Toolbox, tool: Mapping[str, Any], place: str, namespace: str | None) -> None:
    kind = tool.get("type")
    if kind == "namespace" and namespace is None:
        _add_namespace(box, tool, place)
    elif kind == LOCAL_SHELL:
        origin = ToolOrigin(LOCAL_SHELL, LOCAL_SHELL)
        _add_function(box, origin, CLIENT_TOOLS["openai"][LOCAL_SHELL], place)
    elif kind in ("function", "custom"):
        origin = ToolOrigin(kind, _tool_name(tool, place), namespace)
        _add_function(box, origin, _prompt_function(tool, origin, place), place)
    else:
        box.ignored.append(f"tools: {printable_header(str(kind))}")


def _prompt_function(tool: Mapping[str, Any], origin: ToolOrigin, place: str) -> dict[str, Any]:
    """Return the function that the prompt has for a function or custom tool."""
    function: dict[str, Any] = {"name": prompt_name(origin.name, origin.namespace)}
    if description := _tool_description(tool, place):
        function["description"] = description
    is_custom = origin.kind == "custom"
    function["parameters"] = CUSTOM_TOOL_PARAMETERS if is_custom else _tool_parameters(tool, place)
    return function


def _add_namespace(box: Toolbox, tool: Mapping[str, Any], place: str) -> None:
    name = _tool_name(tool, place)
    inner = tool.get("tools")
    if not isinstance(inner, list) or not all(isinstance(t, dict) for t in inner):
        raise field_error(f"{place}.tools", "expected a list of tools.")
    for index, one in enumerate(inner):
        _add_tool(box, one, f"{place}.tools[{index}]", name)


def _add_function(
    box: Toolbox, origin: ToolOrigin, function: Mapping[str, Any], place: str
) -> None:
    box.add({"type": "function", "function": function}, place)
    box.origins[function["name"]] = origin


def _tool_name(tool: Mapping[str, Any], place: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        hint = " (not within `function`, as in chat completions)" if "function" in tool else ""
        raise field_error(f"{place}.name", f"expected a name next to type{hint}.")
    return name


def _tool_description(tool: Mapping[str, Any], place: str) -> str:
    """Return the description, with the grammar of a custom tool's input, so that the model follows it."""
    description = tool.get("description") or ""
    if not isinstance(description, str):
        raise field_error(f"{place}.description", "expected a string.")
    form = tool.get("format")
    is_custom = tool.get("type") == "custom"
    if is_custom and isinstance(form, dict) and form.get("type") == "grammar":
        heading = f"The input follows this {form.get('syntax')} grammar:"
        return f"{description}\n\n{heading}\n{form.get('definition')}".strip()
    return description


def _tool_parameters(tool: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    parameters = tool.get("parameters")
    if not isinstance(parameters, dict | None):
        raise field_error(f"{place}.parameters", "expected a JSON schema, an object.")
    return _NO_PARAMETERS if parameters is None else parameters


def chosen_name(choice: Mapping[str, Any], place: str) -> str:
    """Return the prompt name of the tool that a `tool_choice` names. Raises `RequestError`."""
    kind = choice.get("type")
    if kind == LOCAL_SHELL:
        return LOCAL_SHELL
    name = choice.get("name")
    if kind not in ("function", "custom") or not isinstance(name, str):
        raise field_error(
            place, f"expected a function or custom tool by its name, got type {str(kind)[:60]!r}."
        )
    namespace = choice.get("namespace")
    return prompt_name(name, namespace if isinstance(namespace, str) else None)
