"""A real local server that speaks chat completions, well and badly, as its test says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from openclaw_rl.types import JudgeInput, Reaction

Answer = Callable[[web.Request, int], Awaitable[web.StreamResponse]]
ITEM = JudgeInput(
    turn="t",
    messages=({"role": "user", "content": "hello"},),
    reply={"role": "assistant", "content": "Hi."},
    reaction=Reaction(
        turn="t",
        revision=1,
        messages=({"role": "user", "content": "thanks"},),
        source="u",
        how="exact",
        at=1.0,
    ),
)


def completion(content: Any, finish: str = "stop") -> web.Response:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": content},
        "finish_reason": finish,
    }
    return web.json_response({"object": "chat.completion", "choices": [choice]})


def vote(score: int, hint: str | None = None) -> str:
    return json.dumps({"score": score, "hint": hint, "reason": "r"})


def always(content: Any, finish: str = "stop") -> Answer:
    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        return completion(content, finish)

    return answer


def then(first: Callable[[], web.Response], count: int, content: str) -> Answer:
    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        return first() if number <= count else completion(content)

    return answer


@dataclass
class Endpoint:
    """What the server saw."""

    port: int = 0
    seen: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()

    async def handle(request: web.Request) -> web.StreamResponse:
        endpoint.seen.append(await request.json())
        endpoint.headers.append({key.lower(): value for key, value in request.headers.items()})
        return await answer(request, len(endpoint.seen))

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    endpoint.port = runner.addresses[0][1]
    try:
        yield endpoint
    finally:
        await runner.cleanup()
