"""A stream speaks with its first token, and again when a call is held back or a prompt waits for long."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest
from tests.serve.conftest import KEY, Site, Start

from openclaw_rl.serve import keep_alive
from openclaw_rl.serve.inflight_reply import InflightReply
from openclaw_rl.serve.keep_alive import KeepAlive
from openclaw_rl.testing import ScriptedEngine
from openclaw_rl.types import Chunk, Generation

CALL = '<tool_call>\n{"name": "write", "arguments": {"text": "a b c d e f g h i j"}}\n</tool_call>'
PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}}
FUNCTION = {"name": "write", "parameters": PARAMETERS}
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "go"}],
        "tools": [{"type": "function", "function": FUNCTION}],
    },
    "/v1/messages": {
        "max_tokens": 500,
        "messages": [{"role": "user", "content": "go"}],
        "tools": [{"name": "write", "input_schema": PARAMETERS}],
    },
    "/v1/responses": {"input": "go", "tools": [{"type": "function", **FUNCTION}]},
    "/v1/completions": {"prompt": "go", "max_tokens": 400},
}


@pytest.mark.parametrize("path", REQUESTS)
def test_a_stream_that_holds_text_back_says_so(
    path: str, start: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a delay of each token that is longer than the silence, there is a ping for each."""
    monkeypatch.setattr(keep_alive, "SILENCE", 0.02)
    site = start(delay=0.06)
    site.script.say(CALL)
    answer = site.http.post(path, {"model": "openclaw", "stream": True, **REQUESTS[path]})
    assert answer.status_code == 200
    events = answer.text.split("\n\n")
    ping = "event: ping" if path == "/v1/messages" else ": the reply"
    pings = [number for number, event in enumerate(events) if event.startswith(ping)]
    assert pings
    if "tools" in REQUESTS[path]:
        assert "write" in answer.text
    last = {"/v1/messages": "message_stop", "/v1/responses": "response.completed"}
    assert last.get(path, "[DONE]") in events[-2]


def test_an_error_before_the_first_token_is_an_http_error(start: Callable[..., Site]) -> None:
    site = start(refuse="no")
    body = {"model": "openclaw", "stream": True, **REQUESTS["/v1/chat/completions"]}
    assert site.http.post("/v1/chat/completions", body).status_code == 500


def test_nothing_is_sent_before_the_request_is_on_disk(
    start: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an error of the store could no longer be an HTTP error."""
    monkeypatch.setattr(keep_alive, "SILENCE", 0.02)
    monkeypatch.setattr(InflightReply, "is_recorded", False)
    site = start(delay=0.06)
    site.script.say("Hello there.")
    body = {"model": "openclaw", "stream": True, **REQUESTS["/v1/chat/completions"]}
    answer = site.http.post("/v1/chat/completions", body)
    assert answer.status_code == 200
    assert ": the reply" not in answer.text


def test_who_writes_is_not_spoken_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep_alive, "SILENCE", 3600.0)
    spoken = []

    async def go() -> None:
        async def speak() -> None:
            spoken.append(1)

        alive = KeepAlive(speak)
        async with alive.running():
            alive.note_write()
            await asyncio.sleep(0)

    asyncio.run(go())
    assert spoken == []


class WaitingEngine(ScriptedEngine):
    """Gives the first token when `is_released` is set."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.is_released = asyncio.Event()

    async def generate(self, generation: Generation) -> AsyncIterator[Chunk]:
        """See `protocols.Engine.generate`."""
        await self.is_released.wait()
        async with aclosing(super().generate(generation)) as chunks:
            async for chunk in chunks:
                yield chunk


@pytest.mark.parametrize("path", REQUESTS)
def test_a_stream_begins_when_the_engine_has_its_prompt(
    path: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The headers and a ping come before the first token, without waiting for a whole silence."""
    monkeypatch.setattr(keep_alive, "SILENCE", 3600.0)
    site = start(engine_kind=WaitingEngine)
    engine = site.engine
    assert isinstance(engine, WaitingEngine)
    body = json.dumps({"model": "openclaw", "stream": True, **REQUESTS[path]})
    connection = http.client.HTTPConnection(site.url.removeprefix("http://"), timeout=240)
    connection.request("POST", path, body, {"Authorization": f"Bearer {KEY}"})
    answer = connection.getresponse()
    first = answer.readline().decode()
    assert first.startswith("event: ping" if path == "/v1/messages" else ": the reply")
    assert not engine.is_released.is_set()
    site.loop.call_soon_threadsafe(engine.is_released.set)
    last = {"/v1/messages": "message_stop", "/v1/responses": "response.completed"}
    assert last.get(path, "[DONE]") in answer.read().decode()
    connection.close()


def test_a_stream_does_not_begin_before_the_engine_has_its_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the error of an engine that is away could no longer be an HTTP error."""
    monkeypatch.setattr(keep_alive, "FIRST_SILENCE", 0.0)
    spoken: list[bool] = []
    asked: list[bool] = []

    async def go() -> None:
        has_asked = asyncio.Event()
        is_in_engine = False

        async def speak() -> None:
            spoken.append(is_in_engine)
            has_spoken.set()

        def may_begin() -> bool:
            asked.append(is_in_engine)
            has_asked.set()
            return is_in_engine

        has_spoken = asyncio.Event()
        async with KeepAlive(speak, may_begin=may_begin).running():
            await has_asked.wait()
            is_in_engine = True
            await has_spoken.wait()

    asyncio.run(go())
    assert not asked[0]
    assert spoken == [True]
