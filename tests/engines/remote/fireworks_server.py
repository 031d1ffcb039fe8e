"""A server that speaks the documented completions API of Fireworks, with a function of the ids in place of a model.

Like the service, it refuses fields that it does not know, and ends a reply at the end-of-sequence token unless
`ignore_eos` is set.
"""

from __future__ import annotations

import asyncio
import json
import threading
from types import TracebackType
from typing import Any, Self

from aiohttp import web

LETTERS = "abcdefghijklmnopqrstuvwxyz"
EOS = 8
KNOWN_FIELDS = {
    *(
        "model",
        "prompt",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "logit_bias",
        "ignore_eos",
    ),
    *(
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logprobs",
        "top_logprobs",
        "return_token_ids",
    ),
    *(
        "context_length_exceeded_behavior",
        "stream",
        "raw_output",
        "echo",
        "echo_last",
        "stop",
        "n",
        "response_format",
    ),
}
BASE = "accounts/fireworks/models/letters#accounts/me/deployments/mine"


def next_id(ids: list[int], offset: int) -> int:
    """The id that follows: a function of every id that was read."""
    return (sum(i * (n + 1) for n, i in enumerate(ids)) + offset) % 24


def logprob_of(token: int) -> float:
    return -(1 + token % 5) / 10


class FireworksDouble:
    """Starts on entry. `models`: name in requests -> offset of its replies. `requests`: (path, body)."""

    def __init__(self, **faults: Any) -> None:
        self.models = {BASE: 0}
        self.requests: list[Any] = []
        self.keys: set[str | None] = set()
        self.closed = 0  # streams that the client closed before their end
        self.wrong_ids, self.grammar = faults.pop("wrong_ids", False), faults.pop("grammar", None)
        self.without_ids, self.reads_more = (
            faults.pop("without_ids", False),
            faults.pop("reads_more", False),
        )
        self.key, self.raw = faults.pop("key", None), faults.pop("raw", None)
        assert not faults, faults
        self._app = web.Application()
        self._app.router.add_get("/inference/v1/models", self._models)
        self._app.router.add_post("/inference/v1/completions", self._completions)

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._stop, up = asyncio.Event(), threading.Event()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._serve(up),), daemon=True
        )
        self._thread.start()
        assert up.wait(240)
        return self

    async def _serve(self, up: threading.Event) -> None:
        runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=0.01)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        up.set()
        await self._stop.wait()
        await runner.cleanup()
        handlers = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait_for(asyncio.gather(*handlers, return_exceptions=True), 300)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(240)
        self._loop.close()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": []})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.keys.add(request.headers.get("Authorization"))
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return _refused(401, "The API key you provided is invalid")
        if self.raw is not None:
            return web.Response(body=self.raw, content_type="application/json")
        if unknown := sorted(body.keys() - KNOWN_FIELDS):
            return _refused(400, f"Extra inputs are not permitted, field: '{unknown[0]}'")
        if body["model"] not in self.models:
            return _refused(404, "Model not found, inaccessible, and/or not deployed")
        prompt = [0, *body["prompt"]] if self.reads_more else body["prompt"]
        drawn: list[int] = []
        while len(drawn) < body["max_tokens"]:
            drawn.append(next_id([*prompt, *drawn], self.models[body["model"]]))
            if drawn[-1] == EOS and not body.get("ignore_eos"):
                break
        if body.get("stream"):
            return await self._stream(request, body, drawn)
        drawn = [*body["prompt"][-body["echo_last"] :], *drawn] if body.get("echo_last") else drawn
        choice = self._choice(body, drawn, "length") | {"prompt_token_ids": prompt}
        if body.get("raw_output"):
            choice["raw_output"] = {
                "grammar": self.grammar,
                "completion": choice["text"],
                "prompt_token_ids": prompt,
            }
        return web.json_response({"choices": [choice], "usage": {"prompt_tokens": len(prompt)}})

    async def _stream(
        self, request: web.Request, body: Any, drawn: list[int]
    ) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        try:
            for start in range(
                0, len(drawn), 3
            ):  # several tokens in an event, as with speculative decoding
                part, last = drawn[start : start + 3], start + 3 >= len(drawn)
                event = {"choices": [self._choice(body, part, "length" if last else None)]}
                await answer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                await asyncio.sleep(0.02)
            await answer.write(b"data: [DONE]\n\n")
        except ConnectionError:
            self.closed += 1
        return answer

    def _choice(self, body: Any, drawn: list[int], finish: str | None) -> dict[str, Any]:
        content = [
            {
                "token": LETTERS[i],
                "token_id": i,
                "logprob": logprob_of(i),
                "sampling_logprob": logprob_of(i) / (body["temperature"] or 1.0),
                "bytes": [97 + i],
                "text_offset": n,
                "top_logprobs": [
                    {"token": LETTERS[(i + k) % 24], "token_id": (i + k) % 24, "logprob": -0.1 - k}
                    for k in range(body["top_logprobs"])
                ],
            }
            for n, i in enumerate(drawn)
        ]
        choice: dict[str, Any] = {
            "text": "".join(LETTERS[i] for i in drawn),
            "finish_reason": finish,
            "index": 0,
        }
        if not self.without_ids:
            choice["logprobs"] = {"content": content}
            choice["token_ids"] = [(i + self.wrong_ids) % 24 for i in drawn]
        return choice


def _refused(status: int, words: str) -> web.Response:
    return web.json_response({"error": {"message": words, "code": "invalid"}}, status=status)
