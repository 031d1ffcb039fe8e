"""Client of the engine process: `protocols.Engine` over the Unix socket. Imports no torch."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import cast

import msgspec

from openclaw_rl.engines.base import Info, OnConnect, until_ready
from openclaw_rl.engines.embedded import protocol
from openclaw_rl.errors import EngineError, EngineGone, GrammarError
from openclaw_rl.types import Chunk, Generation, Ids, Logprobs, PolicyRef

_BACK_OFF = (0.02, 1.0)  # seconds between attempts to connect: first, longest


class _Stream:
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

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def fail(self, error: EngineError) -> None:
        self.error = error
        self.wake()

    async def take(self) -> Chunk:
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
        self.token_ids, self.logprobs, self.top, self.cached = [], [], [], 0
        return chunk


class _Connection(asyncio.Protocol):
    """One connection to the engine: sends calls and routes the replies to streams and callers."""

    def __init__(self, lost: Callable[[_Connection], None]) -> None:
        self._frames = protocol.Frames()
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self.streams: dict[int, _Stream] = {}
        self.calls: dict[int, asyncio.Future[protocol.Answer]] = {}
        self.alive = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # not a subclass in uvloop
        self.alive = True

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                self._answer(protocol.answers.decode(body))
        except (EngineGone, msgspec.DecodeError) as error:
            self._break(f"the engine sent an invalid reply ({error})")

    def _answer(self, answer: protocol.Answer) -> None:
        if isinstance(answer, protocol.Tokens):
            self._tokens(answer)
        elif (call := self.calls.pop(answer.id, None)) is not None:
            if not call.done():
                call.set_result(answer)
        elif isinstance(answer, protocol.Failed) and answer.id in self.streams:
            self.streams[answer.id].fail(_refusal(answer))

    def _tokens(self, step: protocol.Tokens) -> None:
        streams, top, finish, cached = self.streams, step.top, step.finish, step.cached
        for key, token, logprob in zip(step.ids, step.token_ids, step.logprobs, strict=True):
            stream = streams.get(key)
            if stream is None:
                continue  # cancelled while the token was in transit
            stream.token_ids.append(token)
            stream.logprobs.append(logprob)
            if top and key in top:
                stream.top.append(top[key])
            if cached and key in cached:
                stream.cached = cached[key]
            if finish and key in finish:
                stream.finish = finish[key]
            stream.wake()

    def send(self, call: protocol.Call) -> None:
        if not self.alive or self._transport is None:
            raise EngineGone("the engine is gone; `openclaw-rl up` restarts it")
        self._transport.write(protocol.encode(call))

    async def ask(self, call: protocol.Call) -> protocol.Answer:
        """Send a call and return its only reply. Raise `EngineError` if it is rejected, `EngineGone` if it is lost."""
        future: asyncio.Future[protocol.Answer] = asyncio.get_running_loop().create_future()
        self.calls[call.id] = future
        try:
            self.send(call)
            answer = await future
        finally:
            self.calls.pop(call.id, None)
        if isinstance(answer, protocol.Failed):
            raise _refusal(answer)
        return answer

    def connection_lost(self, error: Exception | None) -> None:
        self._break("the engine's process ended" + (f" ({error})" if error else ""))

    def _break(self, why: str) -> None:
        if not self.alive:
            return
        self.alive = False
        if self._transport is not None:
            self._transport.abort()
        for stream in self.streams.values():
            stream.fail(EngineGone(f"{why}; the reply is broken off. Retry when the engine is back."))
        for call in self.calls.values():
            if not call.done():
                call.set_exception(EngineGone(f"{why}; the call got no reply"))
        self._lost(self)

    def hang_up(self) -> None:
        self._break("the connection to the engine was closed")


class EngineClient:
    """`EngineLink` to the engine process behind `socket_path`. `on_connect(epoch)`: see `OnConnect`."""

    def __init__(self, socket_path: str | Path, *, on_connect: OnConnect | None = None) -> None:
        self._path = str(socket_path)
        self._ids = itertools.count(1)
        self._on_connect = on_connect
        self._connection: _Connection | None = None
        self._lock = asyncio.Lock()
        self._again: asyncio.Task[None] | None = None
        self._closed = False
        self.epoch = 0

    @property
    def connected(self) -> bool:
        return self._connection is not None and self._connection.alive

    async def _connect(self) -> _Connection:
        """Return the open connection; connect first if needed. Raise `EngineGone` if no engine answers."""
        if self._connection is not None and self._connection.alive:
            return self._connection
        async with self._lock:
            if self._connection is not None and self._connection.alive:
                return self._connection
            if self._closed:
                raise EngineGone("this engine client was closed")
            loop = asyncio.get_running_loop()
            try:
                _, made = await loop.create_unix_connection(lambda: _Connection(self._on_lost), self._path)
            except OSError as error:
                raise EngineGone(f"no engine answers at {self._path} ({error.strerror or error})") from None
            self._connection = made
            self.epoch += 1
            if self._on_connect is not None:
                self._on_connect(self.epoch)
            return made

    def _on_lost(self, connection: _Connection) -> None:
        if connection is self._connection and not self._closed:
            self._again = asyncio.get_running_loop().create_task(self._reconnect())

    async def _reconnect(self) -> None:
        pause, longest = _BACK_OFF
        while not self._closed:
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
            with contextlib.suppress(EngineGone):
                await self._connect()
                return

    async def wait_ready(self, timeout: float) -> Info:  # noqa: ASYNC109 (a deadline over several attempts)
        """Wait until the engine answers. Raise `EngineGone` after `timeout` seconds."""
        return await until_ready(self.info, timeout, _BACK_OFF)

    async def info(self) -> Info:
        """Return model, limits and loaded versions. Raise `EngineGone` if the engine does not answer."""
        connection = await self._connect()
        answer = await connection.ask(protocol.AskInfo(next(self._ids)))
        assert isinstance(answer, protocol.Told)
        return answer.info

    async def generate(self, generation: Generation) -> AsyncIterator[Chunk]:
        """See `protocols.Engine.generate`."""
        connection = await self._connect()
        key, stream = next(self._ids), _Stream()
        connection.streams[key] = stream
        try:
            connection.send(_generate(key, generation))
            while True:
                chunk = await stream.take()
                yield chunk
                if chunk.finish is not None:
                    return
        finally:
            del connection.streams[key]
            if connection.alive and stream.finish is None and stream.error is None:
                connection.send(protocol.Cancel(key))

    async def score(self, *, version: int, prompt_ids: Ids, response_ids: Ids, temperature: float) -> Logprobs:
        """See `protocols.Engine.score`."""
        connection = await self._connect()
        key = next(self._ids)
        call = protocol.Score(key, version, protocol.pack_ids(prompt_ids), protocol.pack_ids(response_ids), temperature)
        try:
            answer = await connection.ask(call)
        except asyncio.CancelledError:
            if connection.alive:
                connection.send(protocol.Cancel(key))
            raise
        assert isinstance(answer, protocol.Scores)
        return protocol.unpack_logprobs(answer.logprobs)

    async def load(self, policies: Sequence[PolicyRef]) -> None:
        """See `protocols.Engine.load`."""
        connection = await self._connect()
        await connection.ask(protocol.Load(next(self._ids), tuple(policies)))

    async def close(self) -> None:
        """Close the connection for good; running streams raise `EngineGone`."""
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        if self._connection is not None:
            self._connection.hang_up()


def _refusal(answer: protocol.Failed) -> EngineError:
    return GrammarError(answer.message) if answer.grammar else EngineError(answer.message)


def _generate(key: int, generation: Generation) -> protocol.Generate:
    return protocol.Generate(
        key,
        generation.version,
        protocol.pack_ids(generation.prompt_ids),
        generation.sampling,
        tuple(generation.stop_token_ids),
        generation.top_logprobs,
    )
