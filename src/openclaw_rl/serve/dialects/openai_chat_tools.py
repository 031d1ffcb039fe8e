"""`tool_choice` and `response_format` of a Chat Completions request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_rl.serve.chat_request import ResponseConstraint
from openclaw_rl.serve.dialects.validation import field_error, json_type_name

ChatTools = Sequence[Mapping[str, Any]]


def read_tool_choice(choice: Any, tools: ChatTools) -> tuple[ChatTools, tuple[str, ...]]:
    """Return the tools of the prompt, and the names of those of which one must be called. Raises `RequestError`."""
    if choice in (None, "auto", "none"):
        return tools, ()
    if choice == "required":
        return tools, _require_tools(_tool_names(tools), "tool_choice: required")
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "function":
        return tools, (_function_name(choice, tools, "tool_choice"),)
    if kind == "allowed_tools":
        return _allowed_tools(choice.get("allowed_tools"), tools)
    got = (
        f"{choice[:40]!r}"
        if isinstance(choice, str)
        else json_type_name(choice)
        if kind is None
        else f"type {kind!r:.40}"
    )
    raise field_error(
        "tool_choice", f"tool_choice: expected auto, none, required, or a function by its name, got {got}."
    )


def _allowed_tools(allowed: Any, tools: ChatTools) -> tuple[ChatTools, tuple[str, ...]]:
    """Filter the tools of the prompt, so that the model calls no other."""
    place = "tool_choice.allowed_tools"
    mode = allowed.get("mode") if isinstance(allowed, dict) else None
    if mode not in ("auto", "required") or not isinstance(allowed.get("tools"), list):
        raise field_error(place, f"{place}: expected mode auto or required, and a list of tools.")
    names = {_function_name(t, tools, f"{place}.tools[{n}]") for n, t in enumerate(allowed["tools"])}
    seen = [t for t in tools if t["function"]["name"] in names]
    return seen, _require_tools(_tool_names(seen), place) if mode == "required" else ()


def _function_name(choice: Any, tools: ChatTools, place: str) -> str:
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise field_error(place, f"{place}: expected {{type: function, function: {{name: ...}}}}.")
    if name not in _tool_names(tools):
        raise field_error(place, f"{place}: {name[:80]!r} is not in tools, which has {sorted(_tool_names(tools))}.")
    return name


def _tool_names(tools: ChatTools) -> tuple[str, ...]:
    return tuple(dict.fromkeys(t["function"]["name"] for t in tools))


def _require_tools(names: tuple[str, ...], place: str) -> tuple[str, ...]:
    if not names:
        raise field_error("tool_choice", f"{place} requires at least one tool in tools.")
    return names


def read_constraint(response_format: Any, calls: tuple[str, ...], tools: ChatTools) -> ResponseConstraint | None:
    """Return the constraint on the reply, or None. Raises `RequestError`.

    A required call outranks a format; with optional tools the reply may have the format or be a call.
    """
    schema = _read_schema(response_format)
    if calls:
        return ResponseConstraint(tool_names=calls, request_field="tool_choice")
    return (
        None
        if schema is None
        else ResponseConstraint(schema=schema, tool_names=_tool_names(tools), request_field="response_format")
    )


def _read_schema(given: Any) -> Mapping[str, Any] | None:
    """Return the JSON schema of the reply. None: free text; {}: any JSON object."""
    if given is None:
        return None
    kind = given.get("type", "text") if isinstance(given, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {}
    if kind != "json_schema":
        got = json_type_name(given) if kind is None else f"type {kind!r:.40}"
        raise field_error(
            "response_format", f"response_format: expected type text, json_object or json_schema, got {got}."
        )
    place = "response_format.json_schema"
    inner = given.get("json_schema")
    schema = inner.get("schema", {}) if isinstance(inner, dict) else None
    if not isinstance(schema, dict):
        raise field_error(f"{place}.schema", f"{place}.schema: expected a JSON schema that is an object.")
    return schema
