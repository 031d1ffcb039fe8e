"""Tools, `tool_choice` and reply formats, as all dialects read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from openclaw_rl.common.assets import read_yaml_asset
from openclaw_rl.errors import json_type_name
from openclaw_rl.serve.chat_request import ResponseConstraint, field_error
from openclaw_rl.store.rows import to_json

CLIENT_TOOLS: Mapping[str, Mapping[str, dict[str, Any]]] = read_yaml_asset("client_tools.yaml")
"""Service -> type -> definition of the tools that requests name without a schema."""
NameReader = Callable[[Mapping[str, Any], str], str]
"""(choice, place) -> the prompt name of the tool that an object of `tool_choice` names."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Parsed `tool_choice`. `only`: tools of the prompt (None: all); `forced`: tools of which one must be called."""

    only: tuple[str, ...] | None = None
    forced: tuple[str, ...] = ()


@dataclass
class PromptTools:
    """Tools of a request in chat format, by their name in the prompt."""

    by_name: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    # Descriptions of the tools that the model cannot use.
    ignored: list[str] = field(default_factory=list)

    def add(self, tool: Mapping[str, Any], place: str) -> None:
        """Add a tool in chat format. Raises `RequestError` if an earlier one has its name."""
        name = tool["function"]["name"]
        if name in self.by_name:
            raise field_error(f"{place}.name", f"two tools have the name {name[:60]!r}.")
        self.by_name[name] = tool

    @cached_property
    def _raw(self) -> bytes:
        return _cache_key(list(self.by_name.values()))

    def select(self, choice: ToolChoice) -> tuple[list[Mapping[str, Any]], bytes]:
        """Return the tools of the prompt, and their JSON as their cache key."""
        try:
            if choice.only is None:
                return list(self.by_name.values()), self._raw
            tools = [tool for name, tool in self.by_name.items() if name in choice.only]
            return tools, _cache_key(tools)
        except RecursionError:
            raise field_error("tools", "nested too deeply.") from None

    def read_choice(self, choice: Any, name_of: NameReader, nested: str = "") -> ToolChoice:
        """Parse `tool_choice`. Raises `RequestError` if it names a tool that is not in tools.

        `nested`: key of the object that lists the allowed tools.
        """
        match choice:
            case None | "auto":
                return ToolChoice()
            case "none":
                return ToolChoice(only=())
            case "required":
                return ToolChoice(forced=_require_names(tuple(self.by_name)))
            case {"type": "allowed_tools"} if nested:
                return self._read_allowed(choice.get(nested), f"tool_choice.{nested}", name_of)
            case {"type": "allowed_tools"}:
                return self._read_allowed(choice, "tool_choice", name_of)
            case dict():
                return ToolChoice(forced=(self._known_name(choice, "tool_choice", name_of),))
            case _:
                got = repr(choice[:40]) if isinstance(choice, str) else json_type_name(choice)
                raise field_error(
                    "tool_choice", f"expected auto, none, required or an object, got {got}."
                )

    def _read_allowed(self, allowed: Any, place: str, name_of: NameReader) -> ToolChoice:
        """Parse a list of allowed tools with its mode."""
        fields = allowed if isinstance(allowed, dict) else {}
        mode = fields.get("mode", "auto")
        tools = fields.get("tools")
        if mode not in ("auto", "required") or not isinstance(tools, list):
            raise field_error(place, "expected mode auto or required, and a list of tools.")
        names = []
        for index, tool in enumerate(tools):
            names.append(self._known_name(tool, f"{place}.tools[{index}]", name_of))
        only = tuple(names)
        if mode == "required":
            return ToolChoice(only=only, forced=_require_names(only))
        return ToolChoice(only=only)

    def _known_name(self, chosen: Any, place: str, name_of: NameReader) -> str:
        if not isinstance(chosen, dict):
            raise field_error(place, f"expected an object, got {json_type_name(chosen)}.")
        name = name_of(chosen, place)
        if name not in self.by_name:
            raise field_error(
                place, f"{name[:80]!r} is not in tools, which has {sorted(self.by_name)[:20]}."
            )
        return name


def _cache_key(tools: Sequence[Mapping[str, Any]]) -> bytes:
    return to_json(tools) if tools else b""


def _require_names(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise field_error("tool_choice", "requires at least one tool in tools.")
    return names


def read_schema(form: Any, place: str, nested: str = "") -> Mapping[str, Any] | None:
    """Return the JSON schema of the reply. None: free text; {}: any JSON object. `nested`: key that has the schema."""
    if form is None:
        return None
    kind = form.get("type", "text") if isinstance(form, dict) else None
    match kind:
        case "text":
            return None
        case "json_object" if form.get("schema") is not None:
            # As llama.cpp and Together have it.
            return _require_schema(form["schema"], f"{place}.schema")
        case "json_object":
            return {}
        case "json_schema" if nested and (nested in form or "schema" not in form):
            holder = form.get(nested)
            schema = holder.get("schema", {}) if isinstance(holder, dict) else None
            return _require_schema(schema, f"{place}.{nested}.schema")
        case "json_schema":
            return _require_schema(form.get("schema"), f"{place}.schema")
    got = json_type_name(form) if kind is None else f"type {kind!r:.40}"
    raise field_error(place, f"expected type text, json_object or json_schema, got {got}.")


def _require_schema(schema: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(schema, dict):
        raise field_error(place, "expected a JSON schema that is an object.")
    return schema


def reply_constraint(
    choice: ToolChoice,
    schema: Mapping[str, Any] | None,
    place: str,
    tools: Sequence[Mapping[str, Any]],
) -> ResponseConstraint | None:
    """Return the constraint on the reply, or None. `place`: the field of the schema.

    A required call outranks a format; with optional tools the reply may have the format or be a call.
    """
    if choice.forced:
        return ResponseConstraint(tool_names=choice.forced, request_field="tool_choice")
    if schema is None:
        return None
    names = tuple(tool["function"]["name"] for tool in tools)
    return ResponseConstraint(schema=schema, tool_names=names, request_field=place)
