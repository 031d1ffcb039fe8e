"""The order of a stream's events, as clients expect it: one thing ends before the next begins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.serve.conftest import Site

CALL = '<tool_call>\n{"name": "write", "arguments": {"text": "a"}}\n</tool_call>'
REPLIES = {
    "words": "Hello there.",
    "one call": CALL,
    "two calls": f"{CALL}\n{CALL}",
    "words and calls": f"I write.\n{CALL}\n{CALL}",
    "reasoning, words and calls": f"<think>\nHm.\n</think>\n\nI write.\n{CALL}\n{CALL}\n{CALL}",
}
PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}}
FUNCTION = {"name": "write", "parameters": PARAMETERS}


def events(text: str) -> Iterator[Any]:
    for line in text.splitlines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize("kind", REPLIES)
def test_an_item_of_responses_is_done_before_the_next_is_added(
    kind: str, start: Callable[..., Site]
) -> None:
    site = start()
    site.script.say(REPLIES[kind])
    body = {"model": "openclaw", "stream": True, "input": "go"}
    body["tools"] = [{"type": "function", **FUNCTION}]
    answer = site.http.post("/v1/responses", body)
    opened: list[int] = []
    added = 0
    for event in events(answer.text):
        if event["type"] == "response.output_item.added":
            assert opened == []
            assert event["output_index"] == added
            opened.append(event["output_index"])
            added += 1
        elif event["type"] == "response.output_item.done":
            assert opened.pop() == event["output_index"]
        elif "output_index" in event:
            assert opened == [event["output_index"]]
    assert opened == []
    last = list(events(answer.text))[-1]
    assert last["type"] == "response.completed"
    assert len(last["response"]["output"]) == added
    calls = [item for item in last["response"]["output"] if item["type"] == "function_call"]
    assert len(calls) == REPLIES[kind].count("<tool_call>")


@pytest.mark.parametrize("kind", REPLIES)
def test_a_chunk_of_chat_with_calls_has_no_content(kind: str, start: Callable[..., Site]) -> None:
    site = start()
    site.script.say(REPLIES[kind])
    body = {"model": "openclaw", "stream": True, "messages": [{"role": "user", "content": "go"}]}
    body["tools"] = [{"type": "function", "function": FUNCTION}]
    answer = site.http.post("/v1/chat/completions", body)
    deltas = [event["choices"][0]["delta"] for event in events(answer.text) if event["choices"]]
    with_calls = [delta for delta in deltas if "tool_calls" in delta]
    assert all(delta.get("content") is None for delta in with_calls)
    assert sum(len(delta["tool_calls"]) for delta in with_calls) == REPLIES[kind].count(
        "<tool_call>"
    )
