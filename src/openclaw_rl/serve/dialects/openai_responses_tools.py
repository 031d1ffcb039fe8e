"""Tools and `tool_choice` of a Responses request, and the mapping from prompt names back to the client's tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from openclaw_rl.serve.dialects.validation import check_tool_name, decode_json, field_error, printable_header
from openclaw_rl.store.rows import to_json

LOCAL_SHELL = "local_shell"
CUSTOM_TOOL_PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input of the tool, as plain text."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Parameters of a custom tool in the prompt: one string."""
_SHELL_FUNCTION = {
    "name": LOCAL_SHELL,
    "description": "Runs a command on the user's machine and returns its output.",
    "parameters": {
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": {"type": "string"}, "description": "The program and its arguments."},
            "working_directory": {"type": "string"},
            "timeout_ms": {"type": "integer"},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
}
_NO_PARAMETERS = {"type": "object", "properties": {}}
_tools_decoder = msgspec.json.Decoder(list[dict[str, Any]] | None)


@dataclass(frozen=True, slots=True)
class ToolOrigin:
    """The client's tool behind a name in the prompt."""

    kind: str  # function | custom | local_shell
    name: str
    namespace: str | None = None


@dataclass(slots=True)
class Toolbox:
    """Tools of a request. `shown`: in chat format, as in the prompt; `origins`: by the name in the prompt."""

    shown: list[dict[str, Any]] = field(default_factory=list)
    origins: dict[str, ToolOrigin] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    echo: list[dict[str, Any]] = field(default_factory=list)
    raw: bytes = b""  # JSON of `shown`


@dataclass(frozen=True, slots=True)
class ResponsesToolChoice:
    """Parsed `tool_choice`. `only`: tools of the prompt (None: all); `forced`: tools of which one must be called."""

    only: tuple[str, ...] | None = None
    forced: tuple[str, ...] = ()


def prompt_name(name: str, namespace: str | None) -> str:
    """Return the prompt name of a tool: its namespace and its name, the same in every request."""
    if not namespace:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


def read_tools(raw: bytes) -> Toolbox:
    """Decode the tools. Raises `RequestError` that names the tool."""
    box = Toolbox()
    for index, tool in enumerate((decode_json(_tools_decoder, raw, "tools") if raw else None) or ()):
        _add_tool(box, tool, f"tools[{index}]", None)
        box.echo.append({"strict": None, "parameters": None} | tool if tool.get("type") == "function" else tool)
    box.raw = to_json(box.shown) if box.shown else b""
    return box


def _add_tool(box: Toolbox, tool: Mapping[str, Any], place: str, namespace: str | None) -> None:
    kind = tool.get("type")
    if kind == "namespace" and namespace is None:
        _add_namespace(box, tool, place)
    elif kind == LOCAL_SHELL:
        _add_function(box, ToolOrigin(LOCAL_SHELL, LOCAL_SHELL), _SHELL_FUNCTION, place)
    elif kind in ("function", "custom"):
        name = _tool_name(tool, place)
        function: dict[str, Any] = {"name": prompt_name(name, namespace)}
        if words := _tool_description(tool, place):
            function["description"] = words
        function["parameters"] = CUSTOM_TOOL_PARAMETERS if kind == "custom" else _tool_parameters(tool, place)
        _add_function(box, ToolOrigin(kind, name, namespace), function, place)
    else:
        box.ignored.append(f"tools: {printable_header(str(kind))}")


def _add_namespace(box: Toolbox, tool: Mapping[str, Any], place: str) -> None:
    name, inner = _tool_name(tool, place), tool.get("tools")
    if not isinstance(inner, list) or not all(isinstance(t, dict) for t in inner):
        raise field_error(f"{place}.tools", f"{place}.tools: expected a list of tools.")
    for index, one in enumerate(inner):
        _add_tool(box, one, f"{place}.tools[{index}]", name)


def _add_function(box: Toolbox, origin: ToolOrigin, function: Mapping[str, Any], place: str) -> None:
    name = function["name"]
    check_tool_name(name, box.origins, place)
    box.origins[name] = origin
    box.shown.append({"type": "function", "function": function})


def _tool_name(tool: Mapping[str, Any], place: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        hint = " (not within `function`, as in chat completions)" if "function" in tool else ""
        raise field_error(f"{place}.name", f"{place}.name: expected a name next to type{hint}.")
    return name


def _tool_description(tool: Mapping[str, Any], place: str) -> str:
    """Return the description, with the grammar of a custom tool's input, so that the model follows it."""
    words = tool.get("description") or ""
    if not isinstance(words, str):
        raise field_error(f"{place}.description", f"{place}.description: expected a string.")
    form = tool.get("format")
    if tool.get("type") == "custom" and isinstance(form, dict) and form.get("type") == "grammar":
        return f"{words}\n\nThe input follows this {form.get('syntax')} grammar:\n{form.get('definition')}".strip()
    return words


def _tool_parameters(tool: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    parameters = tool.get("parameters")
    if not isinstance(parameters, dict | None):
        raise field_error(f"{place}.parameters", f"{place}.parameters: expected a JSON schema, an object.")
    return _NO_PARAMETERS if parameters is None else parameters


# ------------------------------------------------------------------------------------------------------- tool_choice


def read_tool_choice(choice: Any, box: Toolbox) -> ResponsesToolChoice:
    """Parse `tool_choice`. Raises `RequestError` if it names a tool that is not in tools."""
    if choice is None or choice == "auto":
        return ResponsesToolChoice()
    if choice == "none":
        return ResponsesToolChoice(only=())
    if choice == "required":
        if not box.origins:
            raise field_error("tool_choice", "tool_choice: required requires at least one function in tools.")
        return ResponsesToolChoice(forced=tuple(box.origins))
    if isinstance(choice, dict):
        if choice.get("type") == "allowed_tools":
            return _allowed_tools(choice, box)
        return ResponsesToolChoice(forced=(_chosen_name(choice, box, "tool_choice"),))
    raise field_error(
        "tool_choice", f"tool_choice: expected auto, none, required or an object, got {str(choice)[:60]!r}."
    )


def _allowed_tools(choice: Mapping[str, Any], box: Toolbox) -> ResponsesToolChoice:
    tools, mode = choice.get("tools"), choice.get("mode", "auto")
    if not isinstance(tools, list) or not tools or not all(isinstance(t, dict) for t in tools):
        raise field_error("tool_choice.tools", "tool_choice.tools: expected a list of tools.")
    if mode not in ("auto", "required"):
        raise field_error("tool_choice.mode", f"tool_choice.mode: expected auto or required, got {str(mode)[:60]!r}.")
    names = tuple(_chosen_name(t, box, f"tool_choice.tools[{n}]") for n, t in enumerate(tools))
    return ResponsesToolChoice(forced=names) if mode == "required" else ResponsesToolChoice(only=names)


def _chosen_name(choice: Mapping[str, Any], box: Toolbox, place: str) -> str:
    kind, name, namespace = choice.get("type"), choice.get("name"), choice.get("namespace")
    shown = LOCAL_SHELL if kind == LOCAL_SHELL else None
    if kind in ("function", "custom") and isinstance(name, str):
        shown = prompt_name(name, namespace if isinstance(namespace, str) else None)
    if shown is None or shown not in box.origins:
        what = f"{kind} {name}" if name else f"{kind}"
        raise field_error(place, f"{place}: {what[:80]!r} is not in tools, which has {sorted(box.origins)[:20]}.")
    return shown


def select_tools(box: Toolbox, choice: ResponsesToolChoice) -> tuple[Sequence[Mapping[str, Any]], bytes]:
    """Return the tools of the prompt, and their JSON."""
    if choice.only is None:
        return box.shown, box.raw
    shown = [t for t in box.shown if t["function"]["name"] in choice.only]
    return shown, to_json(shown) if shown else b""
