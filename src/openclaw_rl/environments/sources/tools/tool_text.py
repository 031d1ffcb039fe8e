"""Texts of tools: bounded results, descriptions in a prompt, and calls that are written in a reply."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
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
    calls: list[AgentCall] = []
    if form.pattern is None:
        for value in _find_objects(reply):
            if isinstance(value.get("tool"), str):
                arguments = value.get("arguments", {})
                calls.append(
                    AgentCall(
                        id=f"call_{len(calls)}", name=value["tool"], arguments=json.dumps(arguments)
                    )
                )
    else:
        assert form.tool is not None
        for match in re2.finditer(form.pattern, reply):
            named = {name: value for name, value in match.groupdict().items() if value is not None}
            calls.append(
                AgentCall(id=f"call_{len(calls)}", name=form.tool, arguments=json.dumps(named))
            )
    return calls[:_MAX_CALLS]


def _find_objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a text that are in no other."""
    decoder = json.JSONDecoder()
    at = 0
    tried = 0
    while (start := text.find("{", at)) >= 0 and tried < 10 * _MAX_CALLS:
        tried += 1
        try:
            value, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            at = start + 1
            continue
        if isinstance(value, dict):
            yield value
