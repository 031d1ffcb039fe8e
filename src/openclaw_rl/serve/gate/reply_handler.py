"""Handler of the gate's requests: the reply of a version, also of a candidate, to a prompt of token ids.

Nothing is stored of it. It never delays anyone: it runs only while nobody waits for another reply, and gives up when a
request comes, before that request's prompt is made. The exception is practice where people never pause: one reply at a
time may run beside theirs, in the same batch of the engine.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from contextlib import aclosing
from typing import cast

import msgspec
import numpy as np
from aiohttp import web

from openclaw_rl.errors import EngineError, RequestError
from openclaw_rl.serve.chat_request import ReplyFailed
from openclaw_rl.serve.dialects.registry import error_body
from openclaw_rl.serve.dialects.validation import decode_json
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.http_connection import GatewayConnection, json_response
from openclaw_rl.serve.request_body import read_body
from openclaw_rl.types import Generation, Sampling

IDLE_WAIT = 2.0
LOAD_WAIT = 15.0
"""Seconds that a request waits until no other reply runs, and until its version is loaded."""
_POLL_SECONDS = 0.02
SIGN_SECONDS = 5.0
"""Seconds between two signs to the client that the reply is still being generated."""


class _ReplyBody(msgspec.Struct):
    version: int
    prompt_ids: list[int]
    max_tokens: int
    temperature: float
    seed: int
    beside: bool = False


class _ReplyResult(msgspec.Struct):
    token_ids: list[int]
    logprobs: list[float]
    finish: str


_body_decoder = msgspec.json.Decoder(_ReplyBody)
_result_encoder = msgspec.json.Encoder()


class GateReplyHandler:
    """Generates replies for whoever has the gate's key."""

    def __init__(self, gateway: Gateway, key: str) -> None:
        self._gateway = gateway
        self._key = key.encode()
        # Whether a reply runs beside people's replies.
        self._runs_beside = False

    async def post_reply(self, request: web.Request) -> web.StreamResponse:
        """Return the reply to a prompt. Raises `RequestError`, and `ReplyFailed` (503) if other replies run."""
        sent = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(sent, b"Bearer " + self._key):
            raise RequestError(
                "this path is for the trainer of this home.", code="invalid_api_key", status=401
            )
        cast(GatewayConnection, request.protocol).mark_owner()
        body = decode_json(_body_decoder, await read_body(request, self._gateway.config.serve))
        if not body.beside:
            await self._wait_idle(asyncio.get_running_loop().time() + IDLE_WAIT)
            return await self._respond(request, body)
        if self._runs_beside:
            raise _busy()
        self._runs_beside = True
        try:
            return await self._respond(request, body)
        finally:
            self._runs_beside = False

    async def _respond(self, request: web.Request, body: _ReplyBody) -> web.StreamResponse:
        """Answer when the reply is complete. Until then, white space says that it is being generated."""
        reply = asyncio.create_task(self._make_reply(body))
        try:
            done, _ = await asyncio.wait({reply}, timeout=SIGN_SECONDS)
            if done:
                return json_response(reply.result())
            stream = web.StreamResponse(headers={"Content-Type": "application/json"})
            await stream.prepare(request)
            while not done:
                await stream.write(b" ")
                done, _ = await asyncio.wait({reply}, timeout=SIGN_SECONDS)
            await stream.write(_result_or_error(request.path, reply))
            await stream.write_eof()
            return stream
        finally:
            reply.cancel()
            await asyncio.gather(reply, return_exceptions=True)

    async def _make_reply(self, body: _ReplyBody) -> bytes:
        """Return the encoded reply. Raises `RequestError` and `ReplyFailed`."""
        versions = self._gateway.versions
        version = await versions.acquire_version(body.version, for_gate=True)
        try:
            await versions.wait_loaded(
                version, asyncio.get_running_loop().time() + LOAD_WAIT, pinned=True
            )
            if self._must_yield(body):
                raise _busy()
            return _result_encoder.encode(await self._generate(body))
        except EngineError as error:
            raise ReplyFailed(
                f"the engine refused: {error}", status=503, code="engine_error"
            ) from error
        finally:
            versions.release(version)

    def _must_yield(self, body: _ReplyBody) -> bool:
        """Return whether a person's reply runs, and this one may not run beside it."""
        return bool(self._gateway.load.open_requests) and not body.beside

    async def _wait_idle(self, deadline: float) -> None:
        while self._gateway.load.open_requests:
            if asyncio.get_running_loop().time() >= deadline:
                raise _busy()
            await asyncio.sleep(_POLL_SECONDS)

    async def _generate(self, body: _ReplyBody) -> _ReplyResult:
        gateway = self._gateway
        sampling = Sampling(
            temperature=body.temperature,
            max_tokens=min(body.max_tokens, max(gateway.context_length - len(body.prompt_ids), 1)),
            seed=body.seed,
            convention=gateway.config.engine.effective_convention,
        )
        generation = Generation(
            id=f"gate-{secrets.token_hex(8)}",
            version=body.version,
            prompt_ids=np.array(body.prompt_ids, np.int32),
            sampling=sampling,
            stop_token_ids=gateway.renderer.stop_token_ids,
            background=True,
        )
        result = _ReplyResult([], [], "length")
        async with aclosing(gateway.engine.generate(generation)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                result.token_ids += chunk.token_ids
                result.logprobs += chunk.logprobs
                if self._must_yield(body):
                    raise _busy()
                result.finish = chunk.finish or result.finish
        return result


def _result_or_error(path: str, reply: asyncio.Task[bytes]) -> bytes:
    """Return the body of a response whose status was sent before the reply was complete."""
    try:
        return reply.result()
    except (ReplyFailed, RequestError) as error:
        return error_body(path, error.status, str(error), code=error.code)


def _busy() -> ReplyFailed:
    return ReplyFailed(
        "replies to people are running; those for the gate wait.", status=503, code="busy"
    )
