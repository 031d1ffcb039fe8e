"""The routes: HTTP in, HTTP out, and every error in OpenAI's shape."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from openclaw_rl.errors import RequestError, StoreError
from openclaw_rl.serve.ask import Ask, ReplyFailed, checked_id
from openclaw_rl.serve.auth import Keys
from openclaw_rl.serve.connection import first_line
from openclaw_rl.serve.dialects.chat import ChatDialect, ChatStream, decode_json, read_kind
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.serving import Serving
from openclaw_rl.store import policies
from openclaw_rl.store.db import Store
from openclaw_rl.types import Feedback, Policy, PolicyState

log = logging.getLogger(__name__)

_YES = frozenset({"1", "true", "yes", "on"})
_ENCODINGS = frozenset({"", "identity", "gzip", "deflate", "br", "zstd"})  # what aiohttp reads


class _FeedbackBody(msgspec.Struct):
    id: str
    score: int | None = None
    thumbs: str | None = None
    comment: str | None = None
    correction: str | None = None


_THUMBS = {None: None, "up": 1, "down": -1}
_feedback_decoder = msgspec.json.Decoder(_FeedbackBody)
_encode = msgspec.json.Encoder().encode


class Routes:
    """The handlers. Every answer but health, readiness and metrics needs a key."""

    def __init__(self, gateway: Gateway, keys: Keys, engine_alive: Callable[[], bool]) -> None:
        self._gateway, self._keys, self._engine_alive = gateway, keys, engine_alive
        self._dialect = ChatDialect()
        self._count = gateway.metrics.replies.labels

    @web.middleware
    async def shaped(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Whatever goes wrong leaves in OpenAI's shape."""
        try:
            return await handler(request)
        except RequestError as error:
            return self._error(request, error.status, str(error), param=error.param, code=error.code)
        except ReplyFailed as error:
            return self._error(request, error.status, str(error), code=error.code)
        except StoreError as error:
            return self._error(request, 500, str(error), code="not_durable")
        except web.HTTPException as error:
            return self._http_error(request, error)
        except Exception:  # a bug of ours: the client gets a well-formed 500, the log the traceback
            log.exception("%s %s failed", request.method, request.path)
            return self._error(request, 500, "the gateway failed; its log says why.", code="internal_error")

    def _http_error(self, request: web.Request, error: web.HTTPException) -> web.Response:
        if isinstance(error, web.HTTPMethodNotAllowed):
            allowed = ", ".join(sorted(error.allowed_methods))
            answer = self._error(request, 405, f"{request.path} takes {allowed}, not {request.method}.")
            answer.headers["Allow"] = allowed
            return answer
        words = {
            404: f"there is no {request.path}; this is an OpenAI-compatible API: POST /v1/chat/completions, "
            "GET /v1/models, POST /v1/feedback.",
            413: f"the body is larger than {self._gateway.config.serve.max_body_bytes} bytes (serve.max_body_bytes).",
        }
        return self._error(request, error.status, words.get(error.status, error.reason))

    def _error(
        self, request: web.Request, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> web.Response:
        self._count(route="error", outcome=str(status)).inc()
        headers = {"Retry-After": "1"} if status == 503 else None
        return _json(self._dialect.error(status, message, param=param, code=code), status=status, headers=headers)

    # Chat.

    async def chat(self, request: web.Request) -> web.StreamResponse:
        scope = self._keys.scope(request.headers)
        ask = _with_headers(self._dialect.decode(await _body(request)), request)
        serving = await self._gateway.begin(ask, scope)
        if ask.stream:
            return await self._stream(request, ask, serving)
        return await self._whole(ask, serving)

    async def _whole(self, ask: Ask, serving: Serving) -> web.Response:
        end = None
        async with aclosing(serving.parts()) as parts:
            async for part in parts:
                end = part.end
        assert end is not None, "the last part has the end"
        tokens = serving.record.tokens if ask.logprobs else None
        return _json(self._dialect.final(serving.opening, serving.message, tokens, end))

    async def _stream(self, request: web.Request, ask: Ask, serving: Serving) -> web.StreamResponse:
        response: web.StreamResponse | None = None
        wire: ChatStream | None = None
        try:
            async with aclosing(serving.parts()) as parts:
                async for part in parts:
                    if response is None or wire is None:  # up to here an error is an ordinary HTTP error
                        wire = self._dialect.stream(serving.opening, ask)
                        response = await self._open(request)
                    await response.write(wire.part(part))
        except (ReplyFailed, StoreError) as error:
            if response is None:
                raise
            await self._break_off(response, error)
        except ConnectionError:  # the client hung up; the exchange has ended as cancelled, or is complete
            log.debug("%s: the client hung up", serving.opening.id)
        assert response is not None, "a reply has at least its last part"
        return response

    async def _break_off(self, response: web.StreamResponse, error: ReplyFailed | StoreError) -> None:
        """An error event, and no finish: what was streamed does not count as a reply."""
        status, code = (error.status, error.code) if isinstance(error, ReplyFailed) else (500, "not_durable")
        self._count(route="chat", outcome=code).inc()
        with suppress(ConnectionError):
            await response.write(self._dialect.error_event(status, str(error), code))

    async def _open(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={
                "Content-Type": self._dialect.event_stream,
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
            }
        )
        await response.prepare(request)
        return response

    # Everything else.

    async def feedback(self, request: web.Request) -> web.Response:
        scope = self._keys.scope(request.headers)
        item = _feedback(decode_json(_feedback_decoder, await _body(request)), scope)
        try:
            await self._gateway.writer.put(item)
        except KeyError:
            raise RequestError(
                f"id: there is no reply {item.target[:80]!r} under this API key.",
                param="id",
                code="not_found",
                status=404,
            ) from None
        self._count(route="feedback", outcome="ok").inc()
        return _json(_encode({"id": item.id, "object": "feedback", "target": item.target}))

    async def models(self, request: web.Request) -> web.Response:
        self._keys.scope(request.headers)
        return _json(_encode({"object": "list", "data": await self._models()}))

    async def model(self, request: web.Request) -> web.Response:
        self._keys.scope(request.headers)
        name = request.match_info["name"]
        for model in await self._models():
            if model["id"] == name:
                return _json(_encode(model))
        raise RequestError(
            f"the model {name[:80]!r} is not here; GET /v1/models lists what is.",
            param="model",
            code="model_not_found",
            status=404,
        )

    async def _models(self) -> list[dict[str, Any]]:
        name = self._gateway.config.model.name
        known = await asyncio.to_thread(_all_policies, self._gateway.store)
        servable = [p for p in known if p.state in (PolicyState.LIVE, PolicyState.ROLLED_BACK)]
        newest = max((p.created_at for p in servable), default=0.0)
        rows = [(name, newest), *((f"{name}@{p.version}", p.created_at) for p in reversed(servable))]
        return [{"id": i, "object": "model", "created": int(at), "owned_by": "openclaw-rl"} for i, at in rows]

    async def health(self, request: web.Request) -> web.Response:
        return _json(b'{"status":"ok"}')

    async def ready(self, request: web.Request) -> web.Response:
        """200 while requests are answered; a head that waits to be loaded is a reason, but no outage."""
        versions, keeper = self._gateway.versions, self._gateway.keeper
        answers = self._engine_alive() and versions.is_loaded(versions.serving)
        reasons = []
        if not answers:
            reasons.append(versions.trouble or "the engine does not answer")
        elif versions.serving != versions.head:
            reasons.append(versions.trouble or f"version {versions.head} is being loaded")
        if keeper is None or keeper.done():
            answers = False
            reasons.append("the version keeper has ended; the gateway's log says why")
        body = {"ready": answers, "reasons": reasons, "version": versions.serving, "head": versions.head}
        return _json(_encode(body), status=200 if answers else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        metrics = self._gateway.metrics
        return web.Response(body=metrics.expose(), headers={"Content-Type": metrics.content_type})


def _json(body: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def _all_policies(store: Store) -> list[Policy]:
    with store.read() as conn:
        return policies.all(conn)


async def _body(request: web.Request) -> bytes:
    """Raises `RequestError` (400, or 415 for an encoding that is not known)."""
    encoding = request.headers.get("Content-Encoding", "")
    if encoding.strip().lower() not in _ENCODINGS:
        raise RequestError(f"Content-Encoding: expected gzip or none, got {encoding[:40]!r}.", status=415)
    try:
        return await request.read()
    except web.HTTPException:
        raise
    except (web.RequestPayloadError, web.PayloadAccessError, HttpProcessingError, ValueError) as error:
        raise RequestError(f"the body cannot be read: {first_line(error)}.") from None


def _with_headers(ask: Ask, request: web.Request) -> Ask:
    """Headers outrank the body's fallbacks."""
    headers = request.headers
    changes: dict[str, Any] = {}
    if session := headers.get("X-Session-Id"):
        changes["session"] = checked_id(_text(session), "X-Session-Id")
    if kind := read_kind(headers.get("X-Turn-Type"), "X-Turn-Type"):
        changes["kind"] = kind
    if agent := headers.get("X-Agent-Id"):
        changes["agent"] = checked_id(_text(agent), "X-Agent-Id")
    if done := headers.get("X-Session-Done"):
        changes["session_done"] = done.strip().lower() in _YES
    return replace(ask, **changes) if changes else ask


def _text(header: str) -> str:
    """UTF-8, else latin-1: header bytes that are no UTF-8 come as half surrogates, which no store holds."""
    if header.isascii():
        return header
    raw = header.encode("utf-8", "surrogateescape")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _feedback(body: _FeedbackBody, scope: str) -> Feedback:
    if body.thumbs not in _THUMBS:
        raise RequestError(f"thumbs: expected up or down, got {str(body.thumbs)[:40]!r}.", param="thumbs")
    if body.score not in (None, -1, 0, 1):
        raise RequestError(f"score: expected 1, 0 or -1, got {str(body.score)[:40]}.", param="score")
    thumbs = _THUMBS[body.thumbs]
    if body.score is not None and thumbs not in (None, body.score):
        raise RequestError(f"thumbs: {body.thumbs} and score {body.score} disagree; send one.", param="thumbs")
    score = body.score if body.score is not None else thumbs
    if score is None and not body.comment and not body.correction:
        raise RequestError("score: expected score, thumbs, comment or correction, got none of them.", param="score")
    return Feedback(
        id="fb-" + secrets.token_hex(12),
        scope=scope,
        target=body.id,
        score=score,
        comment=body.comment or None,
        correction=body.correction or None,
        given_at=time.time(),
    )
