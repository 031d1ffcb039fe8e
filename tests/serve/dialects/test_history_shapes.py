"""Shapes of histories by plain HTTP in each API: the words of a person land on the reply that they are about."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
from tests.collect import history_shapes, history_shapes_changed
from tests.collect.test_history_shapes import MAX_MISSED, MISSED, check
from tests.collect.world import Ask, Seen, Step, Stored, message
from tests.serve.conftest import KEY, Site, Start

from openclaw_rl.collect.worker import Collector
from openclaw_rl.common.message_hash import message_text
from openclaw_rl.types import Message

SHAPES = history_shapes.SHAPES | history_shapes_changed.SHAPES
CONTEXT = 16_384  # tokens
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "day": {"type": "integer"}},
}
NAMES = {"user": "X-OpenWebUI-User-Id", "session": "X-OpenWebUI-Chat-Id"}
"""The headers by which people and chats are told apart: those of a front end."""


def chat_body(messages: Sequence[Message]) -> dict[str, Any]:
    function = {"name": "weather", "parameters": PARAMETERS}
    return {"messages": messages, "tools": [{"type": "function", "function": function}]}


def responses_body(messages: Sequence[Message]) -> dict[str, Any]:
    tool = {"type": "function", "name": "weather", "parameters": PARAMETERS}
    return {"input": list(response_items(messages)), "tools": [tool], "store": True}


def response_items(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    for one in messages:
        text = message_text(one)
        if one["role"] == "tool":
            yield {"type": "function_call_output", "call_id": one["tool_call_id"], "output": text}
        elif text or not one.get("tool_calls"):
            yield {"role": one["role"], "content": text}
        for call in one.get("tool_calls") or ():
            yield {"type": "function_call", "call_id": call["id"], **call["function"]}


def anthropic_body(messages: Sequence[Message]) -> dict[str, Any]:
    system = [message_text(one) for one in messages if one["role"] == "system"]
    turns = [
        {
            "role": "assistant" if role == "assistant" else "user",
            "content": [block for one in run for block in anthropic_blocks(one)],
        }
        for role, run in groupby(
            (one for one in messages if one["role"] != "system"),
            # Parallel results stand in one message, and so do the words and calls of a reply.
            lambda one: one["role"] if one["role"] != "user" else id(one),
        )
    ]
    tool = {"name": "weather", "input_schema": PARAMETERS}
    return {"messages": turns, "system": "\n".join(system), "tools": [tool], "max_tokens": 256}


def anthropic_blocks(one: Message) -> Iterator[dict[str, Any]]:
    if one["role"] == "tool":
        yield {
            "type": "tool_result",
            "tool_use_id": one["tool_call_id"],
            "content": message_text(one),
        }
    elif message_text(one):
        yield {"type": "text", "text": message_text(one)}
    for call in one.get("tool_calls") or ():
        arguments = json.loads(call["function"]["arguments"])
        yield {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": arguments,
        }


BODIES: dict[str, tuple[str, Callable[[Sequence[Message]], dict[str, Any]]]] = {
    "chat": ("/v1/chat/completions", chat_body),
    "responses": ("/v1/responses", responses_body),
    "messages": ("/v1/messages", anthropic_body),
}
OWN_LINE = "loop: the client writes a line of its own in place of call and result"
"""In two of the APIs, messages of the assistant that follow one another are one: the line is a part of the reply."""
MISSED_IN = {"chat": MISSED, "responses": MISSED | {OWN_LINE}, "messages": MISSED | {OWN_LINE}}


class Wire(Stored):
    """The real gateway, asked over HTTP, and the real loop's steps."""

    def __init__(self, site: Site, api: str) -> None:
        self.site = site
        self.store = site.store
        self.collector = Collector(site.store, site.config.collect)
        self._path, self._body = BODIES[api]
        # By the name in the shape: the id of the exchange; and of each call, by its id in the shape.
        self._exchanges: dict[str, str] = {}
        self._calls: dict[str, str] = {}

    def play(self, step: Step, *, collect: bool = True) -> None:
        assert isinstance(step, Ask)
        self.site.script.say(as_sampled(step.reply))
        named = {header: getattr(step, field) for field, header in NAMES.items()}
        headers = {header: value for header, value in named.items() if value}
        body = self._body([self._with_calls(message(line)) for line in step.history])
        answer = self.site.http.post(
            self._path,
            {"model": "openclaw", **body},
            {"Authorization": f"Bearer {KEY}", **headers},
        )
        assert answer.status_code == 200, answer.text
        last = self.site.last()
        assert last.reply is not None
        self._exchanges[step.name] = last.request.id
        if not isinstance(step.reply, str) and step.reply is not None:
            made = last.reply.message.get("tool_calls") or ()
            for call, real in zip(step.reply.get("tool_calls") or (), made, strict=True):
                self._calls[call["id"]] = real["id"]
        self.collect()

    def _with_calls(self, one: Message) -> Message:
        if one.get("tool_call_id"):
            return {**one, "tool_call_id": self._calls[one["tool_call_id"]]}
        if one.get("tool_calls"):
            calls = [{**call, "id": self._calls[call["id"]]} for call in one["tool_calls"]]
            return {**one, "tool_calls": calls}
        return one

    def seen(self, name: str) -> Seen:
        seen = super().seen(self._exchanges[name])
        names = {id_: one for one, id_ in self._exchanges.items()}
        return replace(seen, answers={names[turn]: how for turn, how in seen.answers.items()})


def as_sampled(reply: str | Message | None) -> str:
    """Return a reply as the model of the test writes it."""
    if reply is None or isinstance(reply, str):
        return reply or "Good."
    functions = [call["function"] for call in reply.get("tool_calls", ())]
    calls = [
        f'<tool_call>\n{{"name": "{f["name"]}", "arguments": {f["arguments"]}}}\n</tool_call>'
        for f in functions
    ]
    return "\n".join(filter(None, [message_text(reply), *calls]))


@pytest.mark.parametrize("api", BODIES)
@pytest.mark.parametrize("name", SHAPES)
def test_shape_over_http(start: Start, name: str, api: str) -> None:
    site = start(settings={"engine.max_context": CONTEXT}, context_length=CONTEXT)
    missed = check(Wire(site, api), SHAPES[name])
    assert bool(missed) == (name in MISSED_IN[api]), missed
    assert len(MISSED_IN[api]) <= MAX_MISSED
