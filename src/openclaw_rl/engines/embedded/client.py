"""Client of the engine process: `protocols.Engine` over the Unix socket. Imports no torch."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import cast

import msgspec

from openclaw_rl.common.frames import FrameDecoder, InvalidFrame
from openclaw_rl.engines.base import wait_until_ready
from openclaw_rl.engines.embedded import protocol
from openclaw_rl.errors import EngineError, EngineGone, rebuild_error
from openclaw_rl.protocols import EngineInfo, OnConnect
from openclaw_rl.types import (
    Chunk,
    Generation,
    Ids,
    Logprobs,
    PolicyRef,
    StateRequest,
    States,
)

# Seconds between attempts to connect: first, longest.
_BACK_OFF = (0.02, 1.0)


class _TokenStream:
    """Buffer for the received tokens of one reply. Tokens that wait together are returned as one chunk."""

    __slots__ = ("cached", "error", "finish", "logprobs", "token_ids", "top", "waiter")

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.top: list[tuple[tuple[int, float], ...]] = []
        self.finish: str | None = None
        self.cached = 0
        self.error: EngineError | None = None
        self.waiter: asyncio.Future[None] | None = None

    def notify_waiter(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def fail(self, error: EngineError) -> None:
        self.error = error
        self.notify_waiter()

    async def next_chunk(self) -> Chunk:
        """Wait for the next chunk. Raise the engine's error if it rejected the call, or `EngineGone`."""
        while not self.token_ids and self.finish is None:
            if self.error is not None:
                raise self.error
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        chunk = Chunk(
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            top=tuple(self.top),
            finish=self.finish,
            cached=self.cached,
        )
        self.token_ids = []
        self.logprobs = []
        self.top = []
        self.cached = 0
        return chunk


class _EngineConnection(asyncio.Protocol):
    """One connection to the engine: sends calls and routes the replies to streams and callers."""

    def __init__(self, lost: Callable[[_EngineConnection], None]) -> None:
        self._frame_decoder = FrameDecoder()
        self._on_lost = lost
        self._transport: asyncio.Transport | None = None
        self.streams: dict[int, _TokenStream] = {}
        self.pending_calls: dict[int, asyncio.Future[protocol.EngineReply]] = {}
        self.alive = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not a subclass in uvloop.
        self._transport = cast(asyncio.Transport, transport)
        self.alive = True

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frame_decoder.feed(data):
                self._dispatch_reply(protocol.reply_decoder.decode(body))
        except (InvalidFrame, msgspec.DecodeError) as error:
            self.close_with_error(f"the engine sent an invalid reply ({error})")

    def _dispatch_reply(self, answer: protocol.EngineReply) -> None:
        if isinstance(answer, protocol.TokensReply):
            self._append_tokens(answer)
            return
        call = self.pending_calls.pop(answer.id, None)
        if call is not None:
            if not call.done():
                call.set_result(answer)
        elif isinstance(answer, protocol.RejectionReply) and answer.id in self.streams:
            self.streams[answer.id].fail(_error_from_reply(answer))

    def _append_tokens(self, step: protocol.TokensReply) -> None:
        streams = self.streams
        top = step.top
        finish = step.finish
        cached = step.cached
        for key, token, logprob in zip(step.ids, step.token_ids, step.logprobs, strict=True):
            stream = streams.get(key)
            if stream is None:
                # Cancelled while the token was in transit.
                continue
            stream.token_ids.append(token)
            stream.logprobs.append(logprob)
            if top and key in top:
                stream.top.append(top[key])
            if cached and key in cached:
                stream.cached = cached[key]
            if finish and key in finish:
                stream.finish = finish[key]
            stream.notify_waiter()

    def send(self, call: protocol.EngineCall) -> None:
        if not self.alive or self._transport is None:
            raise EngineGone("the engine is gone; `openclaw-rl up` restarts it")
        self._transport.write(protocol.encode_frame(call))

    async def request_reply(self, call: protocol.EngineCall) -> protocol.EngineReply:
        """Send a call and return its only reply. Raise `EngineError` if it is rejected, `EngineGone` if it is lost."""
        future: asyncio.Future[protocol.EngineReply] = asyncio.get_running_loop().create_future()
        self.pending_calls[call.id] = future
        try:
            self.send(call)
            answer = await future
        finally:
            self.pending_calls.pop(call.id, None)
        if isinstance(answer, protocol.RejectionReply):
            raise _error_from_reply(answer)
        return answer

    def connection_lost(self, error: Exception | None) -> None:
        self.close_with_error("the engine's process ended" + (f" ({error})" if error else ""))

    def close_with_error(self, reason: str) -> None:
        """Close the connection; its streams and calls raise `EngineGone`."""
        if not self.alive:
            return
        self.alive = False
        if self._transport is not None:
            self._transport.abort()
        for stream in self.streams.values():
            stream.fail(
                EngineGone(f"{reason}; the reply is broken off. Retry when the engine is back.")
            )
        for call in self.pending_calls.values():
            if not call.done():
                call.set_exception(EngineGone(f"{reason}; the call got no reply"))
        self._on_lost(self)


class EngineClient:
    """`EngineLink` to the engine process behind `socket_path`. `on_connect(epoch)`: see `OnConnect`."""

    def __init__(self, socket_path: str | Path, *, on_connect: OnConnect | None = None) -> None:
        self._socket_path = str(socket_path)
        self._call_ids = itertools.count(1)
        self._on_connect = on_connect
        self._connection: _EngineConnection | None = None
        self._lock = asyncio.Lock()
        self._reconnect_task: asyncio.Task[None] | None = None
        self._closed = False
        self.epoch = 0

    @property
    def connected(self) -> bool:
        return self._connection is not None and self._connection.alive

    def _live_connection(self) -> _EngineConnection | None:
        if self._connection is not None and self._connection.alive:
            return self._connection
        return None

    async def _open_connection(self) -> _EngineConnection:
        """Return the open connection; connect first if needed. Raise `EngineGone` if no engine answers."""
        connection = self._live_connection()
        if connection is not None:
            return connection
        async with self._lock:
            # Another caller may have connected.
            connection = self._live_connection()
            if connection is not None:
                return connection
            if self._closed:
                raise EngineGone("this engine client was closed")
            loop = asyncio.get_running_loop()
            try:
                _, connection = await loop.create_unix_connection(
                    lambda: _EngineConnection(self._handle_lost_connection), self._socket_path
                )
            except OSError as error:
                raise EngineGone(
                    f"no engine answers at {self._socket_path} ({error.strerror or error})"
                ) from None
            self._connection = connection
            self.epoch += 1
            if self._on_connect is not None:
                self._on_connect(self.epoch)
            return connection

    def _handle_lost_connection(self, connection: _EngineConnection) -> None:
        if connection is self._connection and not self._closed:
            self._reconnect_task = asyncio.get_running_loop().create_task(self._reconnect_loop())

    async def _reconnect_loop(self) -> None:
        pause, longest = _BACK_OFF
        while not self._closed:
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
            with contextlib.suppress(EngineGone):
                await self._open_connection()
                return

    async def wait_ready(self, timeout: float) -> EngineInfo:  # noqa: ASYNC109 (a deadline over several attempts)
        """Wait until the engine answers. Raise `EngineGone` after `timeout` seconds."""
        return await wait_until_ready(self.info, timeout, _BACK_OFF)

    async def info(self) -> EngineInfo:
        """Return model, limits and loaded versions. Raise `EngineGone` if the engine does not answer."""
        connection = await self._open_connection()
        answer = await connection.request_reply(protocol.InfoCall(next(self._call_ids)))
        assert isinstance(answer, protocol.InfoReply)
        return answer.info

    async def generate(self, generation: Generation) -> AsyncIterator[Chunk]:
        """See `protocols.Engine.generate`."""
        connection = await self._open_connection()
        key = next(self._call_ids)
        stream = _TokenStream()
        connection.streams[key] = stream
        try:
            connection.send(
                protocol.GenerateCall(
                    key,
                    generation.version,
                    protocol.pack_ids(generation.prompt_ids),
                    generation.sampling,
                    tuple(generation.stop_token_ids),
                    generation.top_logprobs,
                    generation.background,
                )
            )
            while True:
                chunk = await stream.next_chunk()
                yield chunk
                if chunk.finish is not None:
                    return
        finally:
            del connection.streams[key]
            if connection.alive and stream.finish is None and stream.error is None:
                connection.send(protocol.CancelCall(key))

    async def score(
        self, *, version: int, prompt_ids: Ids, response_ids: Ids, temperature: float
    ) -> Logprobs:
        """See `protocols.Engine.score`."""
        connection = await self._open_connection()
        key = next(self._call_ids)
        call = protocol.ScoreCall(
            key,
            version,
            protocol.pack_ids(prompt_ids),
            protocol.pack_ids(response_ids),
            temperature,
        )
        answer = await _request_cancellable(connection, call)
        assert isinstance(answer, protocol.ScoreReply)
        return protocol.unpack_logprobs(answer.logprobs)

    async def read_states(self, request: StateRequest) -> States:
        """See `protocols.StateEngine.read_states`."""
        connection = await self._open_connection()
        call = protocol.StatesCall(
            next(self._call_ids),
            protocol.pack_ids(request.ids),
            request.depths,
            request.spans,
            request.shared,
        )
        answer = await _request_cancellable(connection, call)
        assert isinstance(answer, protocol.StatesReply)
        return protocol.unpack_states(answer.states, answer.shape)

    async def load(self, policies: Sequence[PolicyRef]) -> None:
        """See `protocols.Engine.load`."""
        connection = await self._open_connection()
        await connection.request_reply(protocol.LoadCall(next(self._call_ids), tuple(policies)))

    async def close(self) -> None:
        """Close the connection for good; running streams raise `EngineGone`."""
        self._closed = True
        if self._reconnect_task is not None:
            self._reconnect_task.cancel()
        if self._connection is not None:
            self._connection.close_with_error("the connection to the engine was closed")


async def _request_cancellable(
    connection: _EngineConnection, call: protocol.ScoreCall | protocol.StatesCall
) -> protocol.EngineReply:
    """Return the reply to a call that takes time; a cancelled caller cancels the call."""
    try:
        return await connection.request_reply(call)
    except asyncio.CancelledError:
        if connection.alive:
            connection.send(protocol.CancelCall(call.id))
        raise


def _error_from_reply(answer: protocol.RejectionReply) -> EngineError:
    error = rebuild_error(answer.kind, answer.message)
    return error if isinstance(error, EngineError) else EngineError(answer.message)
