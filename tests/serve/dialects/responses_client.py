"""The events of a Responses stream, each held against the official client's types."""

from __future__ import annotations

import json
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from tests.serve.conftest import Answer, Site

_event: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

FUNCTION = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather",
    "strict": False,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def post(site: Site, headers: dict[str, str] | None = None, **body: Any) -> Answer:
    """A request that says hi, unless `body` says else; `headers` beside the key."""
    given = None if headers is None else {"Authorization": "Bearer sk-test"} | headers
    return site.http.post("/v1/responses", {"model": "openclaw", "input": "hi"} | body, given)


def events_of(answer: Answer) -> list[dict[str, Any]]:
    """Every event of a stream, checked: names, types, numbers."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    out = []
    for block in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        _event.validate_python(event)
        out.append(event)
    assert [e["sequence_number"] for e in out] == list(range(len(out)))
    return out


def rebuilt(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output as a client puts it together from the deltas; checked against every `done` on the way."""
    items: dict[int, dict[str, Any]] = {}
    done: list[int] = []
    for event in events:
        kind, index = event["type"], event.get("output_index")
        if kind == "response.output_item.added":
            assert index == len(items)
            items[index] = event["item"]
        elif kind == "response.output_item.done":
            assert items[index] | {"status": event["item"]["status"]} == event["item"] | _seal(
                items[index]
            )
            items[index] = event["item"]
            done.append(index)
        elif index is not None:
            assert event["item_id"] == items[index]["id"]
            _apply(items[index], event)
    assert sorted(done) == list(range(len(items)))
    return [items[n] for n in range(len(items))]


def _seal(item: dict[str, Any]) -> dict[str, Any]:
    """The sealed reasoning is complete at the end only."""
    return {"encrypted_content": item["encrypted_content"]} if "encrypted_content" in item else {}


def _apply(item: dict[str, Any], event: dict[str, Any]) -> None:
    kind = event["type"]
    if kind == "response.content_part.added":
        assert event["content_index"] == len(item["content"])
        item["content"].append(event["part"])
    elif kind in ("response.output_text.delta", "response.reasoning_text.delta"):
        part = item["content"][event["content_index"]]
        part["text"] += event["delta"]
        if "logprobs" in event:
            part["logprobs"] += event["logprobs"]
    elif kind in ("response.output_text.done", "response.reasoning_text.done"):
        assert item["content"][event["content_index"]]["text"] == event["text"]
    elif kind == "response.content_part.done":
        assert item["content"][event["content_index"]] == event["part"]
    elif kind == "response.function_call_arguments.delta":
        item["arguments"] += event["delta"]
    elif kind == "response.function_call_arguments.done":
        assert item["arguments"] == event["arguments"]
    elif kind == "response.custom_tool_call_input.delta":
        item["input"] += event["delta"]
    else:
        assert kind == "response.custom_tool_call_input.done", kind
        assert item["input"] == event["input"]


UNKNOWN = {
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "metadata": {},
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "max_output_tokens": None,
    "max_tool_calls": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "service_tier": "default",
    "top_logprobs": 0,
}
"""What a stored reply does not tell: as of a request that said nothing of it."""


def stored(data: dict[str, Any]) -> Response:
    """A Response that was stored, strictly read."""
    assert {name: data[name] for name in UNKNOWN} == UNKNOWN
    if data["usage"] is not None:
        assert data["usage"]["input_tokens_details"] == {
            "cached_tokens": 0,
            "cache_write_tokens": 0,
        }
    return whole(data)


def whole(data: dict[str, Any]) -> Response:
    """A Response, strictly read."""
    return Response.model_validate(data)
