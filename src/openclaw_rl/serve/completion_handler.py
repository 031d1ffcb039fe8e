"""Handle requests for a reply in every dialect: decode, generate, then stream or send the whole response."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, cast

from aiohttp import web

from openclaw_rl.common.client_ids import read_session, read_user
from openclaw_rl.errors import DiskFull, RequestError, StoreError
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.serve.auth import ApiKeys, Caller
from openclaw_rl.serve.chat_request import (
    DISK_FULL,
    ChatRequest,
    FinishedChoice,
    ReplyEnd,
    ReplyFailed,
    ReplyHeader,
    StreamPart,
    check_id_length,
)
from openclaw_rl.serve.dialects.base import EVENT_STREAM, Dialect, StreamEncoder
from openclaw_rl.serve.dialects.registry import DIALECTS
from openclaw_rl.serve.dialects.validation import read_kind
from openclaw_rl.serve.feedback.message_ids import sent_message_id
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.http_connection import GatewayConnection, json_response
from openclaw_rl.serve.inflight_reply import InflightReply
from openclaw_rl.serve.keep_alive import KeepAlive
from openclaw_rl.serve.request_body import decode_body

log = logging.getLogger(__name__)

WITH_LESSONS_HEADER = "X-With-Lessons"
"""Request header of an evaluation that asks one version as people are served."""
_TRUE_VALUES = frozenset({"1", "true", "yes", "on"})
NOT_STORED = Reason(
    ReasonCode.NOT_STORED,
    "the client forbids it by store=false; the reply is kept for linking only",
)


class CompletionHandler:
    """Handler of every path that requests a reply."""

    def __init__(self, gateway: Gateway, keys: ApiKeys) -> None:
        self._gateway = gateway
        self._keys = keys
        self._reply_counter = gateway.metrics.replies.labels
        dialects = [kind() for kind in DIALECTS]
        self.dialects: Mapping[str, Dialect] = {d.path: d for d in dialects}
        self.token_counters: Mapping[str, Dialect] = {
            d.count_path: d for d in dialects if d.count_path
        }

    async def handle_request(self, http_request: web.Request) -> web.StreamResponse:
        """Handle a request for a reply, in the dialect of its path."""
        caller = await self._keys.authenticate_caller(http_request)
        with self._gateway.ticket_load.count_request(caller.episode):
            self._gateway.load.open_requests += 1
            try:
                return await self._answer(http_request, caller)
            finally:
                self._gateway.load.open_requests -= 1

    def note_failure(self, http_request: web.Request, status: int, message: str) -> None:
        """Note an error of the gateway (status 5xx) for the episode of the request's key: it makes that void."""
        if (
            status >= 500
            and (episode := self._keys.ticket_episode(http_request.headers)) is not None
        ):
            self._gateway.episodes.note_failure(episode, f"{status}: {message}")

    async def _answer(self, http_request: web.Request, caller: Caller) -> web.StreamResponse:
        self._gateway.check_running(caller)
        dialect = self.dialects[http_request.path]
        check = self._gateway.check_body_size if dialect.has_one_prompt else None
        request = _apply_headers(
            await decode_body(dialect.decode, http_request, self._gateway.config.serve, check),
            http_request,
        )
        request = apply_effort(request, self._gateway.renderer.template.names)
        requests = [request, *(_apply_headers(other, http_request) for other in request.further)]
        requests = [apply_deployment(one, http_request) for one in requests]
        honors = self._gateway.config.serve.honor_store
        requests = [apply_store(one, honors=honors) for one in requests]
        requests = [self._gateway.apply_episode(one, caller) for one in requests]
        request = requests[0]
        replies = await self._begin_all(requests, caller)
        if request.stream:
            return await self._send_stream(http_request, dialect, request, replies)
        return await self._send_complete(dialect, request, replies)

    async def _begin_all(
        self, requests: Sequence[ChatRequest], caller: Caller
    ) -> list[InflightReply]:
        """Begin the replies of all requests of one body; if one is refused, all are."""
        replies: list[InflightReply] = []
        try:
            for request in requests:
                replies += await self._gateway.begin_replies(request, caller)
        except BaseException as error:
            # Also for a cancellation: the replies that were begun must end.
            for reply in replies:
                reply.withdraw(f"another prompt of the same request was refused: {error}")
                reply.cancel_unstarted()
            raise
        return replies

    async def _send_complete(
        self, dialect: Dialect, request: ChatRequest, replies: Sequence[InflightReply]
    ) -> web.Response:
        ends: dict[int, ReplyEnd] = {}
        async with aclosing(merge_streams(replies)) as parts:
            async for number, part in parts:
                if part.end is not None:
                    ends[number] = part.end
        choices = [
            FinishedChoice(
                id=s.header.id,
                message=s.current_message,
                tokens=s.accumulator.token_infos,
                token_ids=s.accumulator.token_ids,
                end=ends[n],
            )
            for n, s in enumerate(replies)
        ]
        return json_response(
            dialect.encode_response(replies[0].header, request, choices),
            headers=_reply_headers(replies[0].header),
        )

    async def _send_stream(
        self,
        http_request: web.Request,
        dialect: Dialect,
        request: ChatRequest,
        replies: Sequence[InflightReply],
    ) -> web.StreamResponse:
        headers = {
            "Content-Type": EVENT_STREAM,
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }
        response = web.StreamResponse(headers=headers | _reply_headers(replies[0].header))
        encoder: StreamEncoder | None = None

        beginning = asyncio.Lock()

        async def begin() -> StreamEncoder:
            """Send the headers. Before this, an error is sent as an ordinary HTTP error."""
            nonlocal encoder
            async with beginning:
                if encoder is None:
                    first = dialect.stream_encoder(replies[0].header, request)
                    await _wait_sent(response.prepare(http_request))
                    encoder = first
            return encoder

        async def speak() -> None:
            speaker = encoder or await begin()
            await _wait_sent(response.write(speaker.encode_ping()))

        keep_alive = KeepAlive(
            speak,
            may_speak=lambda: _are_recorded(replies),
            may_begin=lambda: all(reply.is_in_engine for reply in replies),
        )
        try:
            async with keep_alive.running(), aclosing(merge_streams(replies)) as parts:
                async for number, part in parts:
                    keep_alive.note_write()
                    writer = encoder or await begin()
                    await _wait_sent(response.write(writer.encode_part(part, number)))
        except ClientDisconnected:
            # The exchange has ended as cancelled, or is complete.
            log.debug("%s: the client closed the connection", replies[0].header.id)
        except Exception as error:
            # Any error: some clients take a stream that just stops for complete.
            if encoder is None:
                raise
            await self._send_stream_error(http_request, response, encoder, dialect, error)
        return response

    async def _send_stream_error(
        self,
        http_request: web.Request,
        response: web.StreamResponse,
        encoder: StreamEncoder,
        dialect: Dialect,
        error: Exception,
    ) -> None:
        """Send an error event and no finish, so that the client does not take the output for a complete reply."""
        status, message, code, _ = describe_error(error, "a reply during the stream")
        self._reply_counter(route=dialect.name, outcome=code or "refused").inc()
        self.note_failure(http_request, status, message)
        with suppress(ClientDisconnected):
            await _wait_sent(
                response.write(encoder.encode_error(status, message, code or "refused"))
            )


def _are_recorded(replies: Sequence[InflightReply]) -> bool:
    """Whether the requests are on disk: nothing is sent before."""
    return all(reply.is_recorded for reply in replies)


class ClientDisconnected(Exception):
    """The client closed the connection. (A plain `ConnectionError` can have other causes.)"""


async def _wait_sent(writing: Awaitable[object]) -> None:
    """Wait until the data is sent. Raises `ClientDisconnected`."""
    try:
        await writing
    except ConnectionError as error:
        raise ClientDisconnected from error


def describe_error(error: Exception, what: str) -> tuple[int, str, str | None, str | None]:
    """Return (status, message, code, param) for the client. `what`: the failed work, for the log."""
    if isinstance(error, DiskFull):
        return 503, f"no reply can be recorded now: {error}", DISK_FULL, None
    if isinstance(error, StoreError):
        return 500, str(error), "not_durable", None
    if isinstance(error, (ReplyFailed, RequestError)):
        return error.status, str(error), error.code, getattr(error, "param", None)
    # A bug: the client gets a well-formed 500, and the log the traceback.
    log.error("%s failed", what, exc_info=error)
    return 500, "the gateway failed; see its log for the reason.", "internal_error", None


def _reply_headers(header: ReplyHeader) -> dict[str, str]:
    """Return the response headers that list ignored request fields, changes to the history, and the ids of lessons.

    Those of the lessons in the prompt, and of those that were withdrawn because they cost correctness.
    """
    headers = {
        "X-OpenClaw-Ignored": "; ".join(header.ignored)[:1000],
        "X-OpenClaw-Degraded": ", ".join(header.degraded),
        "X-OpenClaw-Lessons": ", ".join(header.lessons),
        "X-OpenClaw-Withdrawn-Lessons": ", ".join(header.withdrawn),
    }
    return {name: value for name, value in headers.items() if value}


def _apply_headers(request: ChatRequest, http_request: web.Request) -> ChatRequest:
    """Return `request` with the values of the request's headers, which override the body's.

    The ids of front ends (`assets/client_ids.yaml`) count where neither body nor headers of the gateway name one.
    """
    headers = http_request.headers
    changes: dict[str, Any] = {}
    session = read_session(headers, request.metadata)
    if session.value and not request.session:
        changes["session"] = check_id_length(decode_header(session.value), session.name)
    user = read_user(headers, request.metadata)
    if user.value and not request.user:
        changes["user"] = check_id_length(decode_header(user.value), user.name)
    for field, name in (("session", "X-Session-Id"), ("agent", "X-Agent-Id")):
        if value := headers.get(name):
            changes[field] = check_id_length(decode_header(value), name)
    sent_id = sent_message_id(headers)
    if sent_id is not None:
        value, name = sent_id
        changes["client_message_id"] = check_id_length(decode_header(value), name)
    if kind := read_kind(headers.get("X-Turn-Type"), "X-Turn-Type"):
        changes["kind"] = kind
    if lessons := headers.get(WITH_LESSONS_HEADER):
        changes["with_lessons"] = lessons.strip().lower() in _TRUE_VALUES
    if done := headers.get("X-Session-Done"):
        changes["session_done"] = done.strip().lower() in _TRUE_VALUES
    return replace(request, **changes) if changes else request


def apply_effort(request: ChatRequest, used: Collection[str]) -> ChatRequest:
    """Return the request with its `reasoning_effort` as template variables. `used`: those that the template reads."""
    if not (effort := request.reasoning_effort):
        return request
    values = {
        "reasoning_effort": effort,
        **({"enable_thinking": False} if effort == "none" else {}),
    }
    if read := {name: value for name, value in values.items() if name in used}:
        return replace(request, template_variables=read | dict(request.template_variables))
    ignored = f"reasoning_effort (the model's chat template does not use {' or '.join(values)})"
    return replace(request, ignored_fields=(*request.ignored_fields, ignored))


def apply_deployment(request: ChatRequest, http_request: web.Request) -> ChatRequest:
    """Return the request for the model that its path names, which outranks the body's, as at Azure."""
    deployment = cast(GatewayConnection, http_request.protocol).deployment
    return replace(request, model=deployment) if deployment else request


def apply_store(request: ChatRequest, *, honors: bool) -> ChatRequest:
    """Return the request with the effect of `store: false`. `honors`: `serve.honor_store`."""
    if request.may_store:
        return request
    if honors:
        return replace(request, untrainable=request.untrainable or NOT_STORED)
    ignored = "store: false (the owner decides what is stored: serve.honor_store)"
    return replace(request, ignored_fields=(*request.ignored_fields, ignored))


def decode_header(header: str) -> str:
    """Decode as UTF-8, else as latin-1: aiohttp gives other bytes as lone surrogates, which the store cannot keep."""
    if header.isascii():
        return header
    raw = header.encode("utf-8", "surrogateescape")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


_PartQueue = asyncio.Queue[tuple[int, StreamPart | Exception]]


async def merge_streams(replies: Sequence[InflightReply]) -> AsyncGenerator[tuple[int, StreamPart]]:
    """Yield (reply number, part) as the parts arrive. Each reply's last part has its `end`.

    Raises the error of the first reply that fails. An error, or closing the iterator early, cancels all replies.
    """
    if len(replies) == 1:
        async with aclosing(replies[0].stream_parts()) as parts:
            async for part in parts:
                yield 0, part
        return
    # Bounded, so that a slow client slows down all replies.
    ready: _PartQueue = asyncio.Queue(len(replies))
    tasks = [asyncio.create_task(_queue_parts(n, reply, ready)) for n, reply in enumerate(replies)]
    running = len(replies)
    try:
        while running:
            number, event = await ready.get()
            if isinstance(event, Exception):
                for reply in replies:
                    reply.withdraw(f"another reply of the same request failed: {event}")
                raise event
            running -= event.end is not None
            yield number, event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A task that never ran has not started its reply.
        for reply in replies:
            reply.cancel_unstarted()


async def _queue_parts(number: int, reply: InflightReply, ready: _PartQueue) -> None:
    try:
        async with aclosing(reply.stream_parts()) as parts:
            async for part in parts:
                await ready.put((number, part))
    except Exception as error:  # noqa: BLE001 - the reader of the queue raises it
        await ready.put((number, error))
