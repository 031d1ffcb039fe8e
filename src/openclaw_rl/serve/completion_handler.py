"""Handle requests for a reply in every dialect: decode, generate, then stream or send the whole response."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from openclaw_rl.errors import RequestError, StoreError
from openclaw_rl.serve.auth import Keys
from openclaw_rl.serve.chat_request import Ask, Choice, End, Part, ReplyFailed, checked_id
from openclaw_rl.serve.dialects.anthropic_messages import MessagesDialect
from openclaw_rl.serve.dialects.base import EVENT_STREAM, Counts, Dialect, Wire
from openclaw_rl.serve.dialects.errors import MESSAGES
from openclaw_rl.serve.dialects.openai_chat import ChatDialect
from openclaw_rl.serve.dialects.openai_responses import ResponsesDialect
from openclaw_rl.serve.dialects.validation import read_kind
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.http_connection import first_line
from openclaw_rl.serve.inflight_reply import Serving

log = logging.getLogger(__name__)

_YES = frozenset({"1", "true", "yes", "on"})
_ENCODINGS = frozenset({"", "identity", "gzip", "deflate", "br", "zstd"})  # supported by aiohttp


class Replies:
    """Handler of every path that requests a reply."""

    def __init__(self, gateway: Gateway, keys: Keys) -> None:
        self._gateway, self._keys = gateway, keys
        self._count = gateway.metrics.replies.labels
        messages, responses = MessagesDialect(), ResponsesDialect()
        self.dialects: Mapping[str, Dialect] = {
            "/v1/chat/completions": ChatDialect(),
            "/v1/responses": responses,
            MESSAGES: messages,
        }
        self.counts: Mapping[str, Counts] = {
            "/v1/responses/input_tokens": responses,
            "/v1/messages/count_tokens": messages,
        }

    async def reply(self, request: web.Request) -> web.StreamResponse:
        """Handle a request for a reply, in the dialect of its path."""
        scope = self._keys.scope(request.headers)
        dialect = self.dialects[request.path]
        ask = _with_headers(dialect.decode(await read_body(request), request.headers), request)
        servings = await self._gateway.begin_all(ask, scope)
        if ask.stream:
            return await self._stream(request, dialect, ask, servings)
        return await self._whole(dialect, ask, servings)

    async def _whole(self, dialect: Dialect, ask: Ask, servings: Sequence[Serving]) -> web.Response:
        ends: dict[int, End] = {}
        async with aclosing(interleaved(servings)) as parts:
            async for number, part in parts:
                if part.end is not None:
                    ends[number] = part.end
        choices = [
            Choice(id=s.opening.id, message=s.message, tokens=s.record.tokens, end=ends[n])
            for n, s in enumerate(servings)
        ]
        return json_answer(dialect.final(servings[0].opening, ask, choices), headers=_notes(ask))

    async def _stream(
        self, request: web.Request, dialect: Dialect, ask: Ask, servings: Sequence[Serving]
    ) -> web.StreamResponse:
        response = _event_stream(ask)
        wire: Wire | None = None
        try:
            async with aclosing(interleaved(servings)) as parts:
                async for number, part in parts:
                    if wire is None:  # before this point an error is sent as an ordinary HTTP error
                        wire = dialect.stream(servings[0].opening, ask)
                        await _sent(response.prepare(request))
                    await _sent(response.write(wire.part(part, number)))
        except _HungUp:  # the exchange has ended as cancelled, or is complete
            log.debug("%s: the client closed the connection", servings[0].opening.id)
        except Exception as error:  # any error: some clients take a stream that only stops for a complete one
            if wire is None:
                raise
            await self._break_off(response, wire, dialect, error)
        return response

    async def _break_off(self, response: web.StreamResponse, wire: Wire, dialect: Dialect, error: Exception) -> None:
        """Send an error event and no finish, so that the client does not take the output for a complete reply."""
        status, words, code = _told(error)
        self._count(route=dialect.name, outcome=code).inc()
        with suppress(_HungUp):
            await _sent(response.write(wire.broken(status, words, code)))


class _HungUp(Exception):
    """The client closed the connection. (A plain `ConnectionError` can have other causes.)"""


async def _sent(writing: Awaitable[object]) -> None:
    """Wait until the data is sent. Raises `ClientDisconnected`."""
    try:
        await writing
    except ConnectionError as error:
        raise _HungUp from error


def _told(error: Exception) -> tuple[int, str, str]:
    """Return (status, message, code) for an error in the middle of a stream."""
    if isinstance(error, StoreError):
        return 500, str(error), "not_durable"
    if isinstance(error, (ReplyFailed, RequestError)):
        return error.status, str(error), error.code or "refused"
    log.error("a reply failed during the stream", exc_info=error)
    return 500, "the gateway failed; see its log for the reason.", "internal_error"


def _event_stream(ask: Ask) -> web.StreamResponse:
    headers = {"Content-Type": EVENT_STREAM, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return web.StreamResponse(headers=headers | _notes(ask))


def json_answer(body: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def _notes(ask: Ask) -> dict[str, str]:
    """Return the response header that lists ignored request fields."""
    return {"X-OpenClaw-Ignored": "; ".join(ask.ignored)[:1000]} if ask.ignored else {}


async def read_body(request: web.Request) -> bytes:
    """Read the body. Raises `RequestError` (400, or 415 for an unknown content encoding)."""
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
    """Return `ask` with the values of the request's headers, which override the body's."""
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
    """Decode as UTF-8, else as latin-1: aiohttp gives other bytes as lone surrogates, which the store cannot keep."""
    if header.isascii():
        return header
    raw = header.encode("utf-8", "surrogateescape")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


_Ready = asyncio.Queue[tuple[int, Part | Exception]]


async def interleaved(servings: Sequence[Serving]) -> AsyncGenerator[tuple[int, Part]]:
    """Yield (reply number, part) as the parts arrive. Each reply's last part has its `end`.

    Raises the error of the first reply that fails. An error, or closing the iterator early, cancels all replies.
    """
    if len(servings) == 1:
        async with aclosing(servings[0].parts()) as parts:
            async for part in parts:
                yield 0, part
        return
    ready: _Ready = asyncio.Queue(len(servings))  # bounded, so that a slow client slows down all replies
    tasks = [asyncio.create_task(_tell(n, serving, ready)) for n, serving in enumerate(servings)]
    running = len(servings)
    try:
        while running:
            number, told = await ready.get()
            if isinstance(told, Exception):
                for serving in servings:
                    serving.leaving = f"another reply of the same request failed: {told}"
                raise told
            running -= told.end is not None
            yield number, told
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for serving in servings:  # a task that never ran has not started its reply
            serving.abandon()


async def _tell(number: int, serving: Serving, ready: _Ready) -> None:
    try:
        async with aclosing(serving.parts()) as parts:
            async for part in parts:
                await ready.put((number, part))
    except Exception as error:  # noqa: BLE001 - the reader of the queue raises it
        await ready.put((number, error))
