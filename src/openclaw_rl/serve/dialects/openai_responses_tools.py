"""Tools and `tool_choice` of a Responses request, and the mapping from prompt names back to the client's tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from openclaw_rl.serve.dialects.validation import bad, check_name, decode_json, printable
from openclaw_rl.store.rows import to_json

LOCAL_SHELL = "local_shell"
FREEFORM = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input of the tool, as plain text."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Parameters of a custom tool in the prompt: one string."""
_SHELL = {
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
_list = msgspec.json.Decoder(list[dict[str, Any]] | None)


@dataclass(frozen=True, slots=True)
class Origin:
    """The client's tool behind a name in the prompt."""

    kind: str  # function | custom | local_shell
    name: str
    namespace: str | None = None


@dataclass(slots=True)
class Toolbox:
    """Tools of a request. `shown`: in chat format, as in the prompt; `origins`: by the name in the prompt."""

    shown: list[dict[str, Any]] = field(default_factory=list)
    origins: dict[str, Origin] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    echo: list[dict[str, Any]] = field(default_factory=list)
    raw: bytes = b""  # JSON of `shown`


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Parsed `tool_choice`. `only`: tools of the prompt (None: all); `forced`: tools of which one must be called."""

    only: tuple[str, ...] | None = None
    forced: tuple[str, ...] = ()


def shown_name(name: str, namespace: str | None) -> str:
    """Return the prompt name of a tool: its namespace and its name, the same in every request."""
    if not namespace:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


def read_tools(raw: bytes) -> Toolbox:
    """Decode the tools. Raises `RequestError` that names the tool."""
    box = Toolbox()
    for index, tool in enumerate((decode_json(_list, raw, "tools") if raw else None) or ()):
        _add(box, tool, f"tools[{index}]", None)
        box.echo.append({"strict": None, "parameters": None} | tool if tool.get("type") == "function" else tool)
    box.raw = to_json(box.shown) if box.shown else b""
    return box


def _add(box: Toolbox, tool: Mapping[str, Any], place: str, namespace: str | None) -> None:
    kind = tool.get("type")
    if kind == "namespace" and namespace is None:
        _add_namespace(box, tool, place)
    elif kind == LOCAL_SHELL:
        _show(box, Origin(LOCAL_SHELL, LOCAL_SHELL), _SHELL, place)
    elif kind in ("function", "custom"):
        name = _name(tool, place)
        function: dict[str, Any] = {"name": shown_name(name, namespace)}
        if words := _description(tool, place):
            function["description"] = words
        function["parameters"] = FREEFORM if kind == "custom" else _parameters(tool, place)
        _show(box, Origin(kind, name, namespace), function, place)
    else:
        box.ignored.append(f"tools: {printable(str(kind))}")


def _add_namespace(box: Toolbox, tool: Mapping[str, Any], place: str) -> None:
    name, inner = _name(tool, place), tool.get("tools")
    if not isinstance(inner, list) or not all(isinstance(t, dict) for t in inner):
        raise bad(f"{place}.tools", f"{place}.tools: expected a list of tools.")
    for index, one in enumerate(inner):
        _add(box, one, f"{place}.tools[{index}]", name)


def _show(box: Toolbox, origin: Origin, function: Mapping[str, Any], place: str) -> None:
    name = function["name"]
    check_name(name, box.origins, place)
    box.origins[name] = origin
    box.shown.append({"type": "function", "function": function})


def _name(tool: Mapping[str, Any], place: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        hint = " (not within `function`, as in chat completions)" if "function" in tool else ""
        raise bad(f"{place}.name", f"{place}.name: expected a name next to type{hint}.")
    return name


def _description(tool: Mapping[str, Any], place: str) -> str:
    """Return the description, with the grammar of a custom tool's input, so that the model follows it."""
    words = tool.get("description") or ""
    if not isinstance(words, str):
        raise bad(f"{place}.description", f"{place}.description: expected a string.")
    form = tool.get("format")
    if tool.get("type") == "custom" and isinstance(form, dict) and form.get("type") == "grammar":
        return f"{words}\n\nThe input follows this {form.get('syntax')} grammar:\n{form.get('definition')}".strip()
    return words


def _parameters(tool: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    parameters = tool.get("parameters")
    if not isinstance(parameters, dict | None):
        raise bad(f"{place}.parameters", f"{place}.parameters: expected a JSON schema, an object.")
    return _NO_PARAMETERS if parameters is None else parameters


# ------------------------------------------------------------------------------------------------------- tool_choice


def read_choice(choice: Any, box: Toolbox) -> ToolChoice:
    """Parse `tool_choice`. Raises `RequestError` if it names a tool that is not in tools."""
    if choice is None or choice == "auto":
        return ToolChoice()
    if choice == "none":
        return ToolChoice(only=())
    if choice == "required":
        if not box.origins:
            raise bad("tool_choice", "tool_choice: required requires at least one function in tools.")
        return ToolChoice(forced=tuple(box.origins))
    if isinstance(choice, dict):
        if choice.get("type") == "allowed_tools":
            return _allowed(choice, box)
        return ToolChoice(forced=(_chosen(choice, box, "tool_choice"),))
    raise bad("tool_choice", f"tool_choice: expected auto, none, required or an object, got {str(choice)[:60]!r}.")


def _allowed(choice: Mapping[str, Any], box: Toolbox) -> ToolChoice:
    tools, mode = choice.get("tools"), choice.get("mode", "auto")
    if not isinstance(tools, list) or not tools or not all(isinstance(t, dict) for t in tools):
        raise bad("tool_choice.tools", "tool_choice.tools: expected a list of tools.")
    if mode not in ("auto", "required"):
        raise bad("tool_choice.mode", f"tool_choice.mode: expected auto or required, got {str(mode)[:60]!r}.")
    names = tuple(_chosen(t, box, f"tool_choice.tools[{n}]") for n, t in enumerate(tools))
    return ToolChoice(forced=names) if mode == "required" else ToolChoice(only=names)


def _chosen(choice: Mapping[str, Any], box: Toolbox, place: str) -> str:
    kind, name, namespace = choice.get("type"), choice.get("name"), choice.get("namespace")
    shown = LOCAL_SHELL if kind == LOCAL_SHELL else None
    if kind in ("function", "custom") and isinstance(name, str):
        shown = shown_name(name, namespace if isinstance(namespace, str) else None)
    if shown is None or shown not in box.origins:
        what = f"{kind} {name}" if name else f"{kind}"
        raise bad(place, f"{place}: {what[:80]!r} is not in tools, which has {sorted(box.origins)[:20]}.")
    return shown


def chosen_tools(box: Toolbox, choice: ToolChoice) -> tuple[Sequence[Mapping[str, Any]], bytes]:
    """Return the tools of the prompt, and their JSON."""
    if choice.only is None:
        return box.shown, box.raw
    shown = [t for t in box.shown if t["function"]["name"] in choice.only]
    return shown, to_json(shown) if shown else b""
