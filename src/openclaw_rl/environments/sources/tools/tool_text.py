"""Texts of tools: bounded results, descriptions in a prompt, and calls that are written in a reply."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import re2

from openclaw_rl.environments.agents.chat_agent import AgentCall
from openclaw_rl.environments.sources.tools.tool_config import TextCalls

# Of one reply.
_MAX_CALLS = 32


def cut_middle(text: str, characters: int) -> str:
    """Return the text, without its middle if it is longer."""
    if len(text) <= characters:
        return text
    half = characters // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def explain_tools(definitions: Sequence[dict[str, Any]]) -> str:
    """Return a description of tools and of the form of a call, for a model without a tool format of its own."""
    lines = ["You can use these tools:"]
    for definition in definitions:
        function = definition["function"]
        lines.append(
            f"- {function['name']}: {function['description']} Arguments: {json.dumps(function['parameters'])}"
        )
    lines.append('To use one, reply with a JSON object: {"tool": "name", "arguments": {...}}. '
                 "A reply without such an object is your answer.")  # fmt: skip
    return "\n".join(lines)


def find_text_calls(reply: str, form: TextCalls) -> list[AgentCall]:
    """Return the calls that a reply contains, at most 32."""
    matches = _calls_in_json(reply) if form.pattern is None else _calls_by_pattern(reply, form)
    calls: list[AgentCall] = []
    for name, arguments in islice(matches, _MAX_CALLS):
        call_id = f"call_{len(calls)}"
        calls.append(AgentCall(id=call_id, name=name, arguments=json.dumps(arguments)))
    return calls


def _calls_in_json(reply: str) -> Iterator[tuple[str, Any]]:
    """Yield the name and the arguments of each call that is a JSON object."""
    for value in _find_objects(reply):
        name = value.get("tool")
        if isinstance(name, str):
            yield name, value.get("arguments", {})


def _calls_by_pattern(reply: str, form: TextCalls) -> Iterator[tuple[str, Any]]:
    """Yield the name and the arguments of each match: those of its named groups that have a text."""
    assert form.pattern is not None
    assert form.tool is not None
    for match in re2.finditer(form.pattern, reply):
        groups = match.groupdict()
        arguments = {name: value for name, value in groups.items() if value is not None}
        yield form.tool, arguments


def _find_objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a text that are in no other."""
    decoder = json.JSONDecoder()
    at = 0
    tried = 0
    while tried < 10 * _MAX_CALLS:
        start = text.find("{", at)
        if start < 0:
            return
        tried += 1
        try:
            value, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            at = start + 1
            continue
        if isinstance(value, dict):
            yield value
