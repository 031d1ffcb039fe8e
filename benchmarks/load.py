"""A load generator on raw sockets: n clients, each asks again as soon as its reply is complete."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from conversations import FIRST_MEASURED, Conversation, Traffic
from servers import processor_seconds

# Of one cell.
MAX_REQUESTS = 100_000
# Seconds.
ANSWER_WITHIN = 60.0


@dataclass(slots=True)
class Result:
    """One cell. Latencies in seconds, from the first byte sent to the last byte received."""

    seconds: float
    latencies: list[float]
    events: list[int]  # SSE events of each streamed reply
    wrong: dict[str, int] = field(default_factory=dict)
    processor_seconds: float = 0.0  # of the server, in the measured part

    @property
    def rps(self) -> float:
        return len(self.latencies) / self.seconds

    @property
    def processor_us(self) -> float:
        """Microseconds of the server's processor time per request."""
        return self.processor_seconds / max(len(self.latencies), 1) * 1e6

    def ms(self, percentile: float) -> float:
        return (
            float(np.percentile(self.latencies, percentile)) * 1e3
            if self.latencies
            else float("nan")
        )


class Wire(asyncio.Protocol):
    """One connection, one call at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._done: asyncio.Future[None] | None = None
        # Of the reply; -1: unknown, -2: chunked.
        self._end = -1
        self._body = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is none by inheritance.
        self._transport = cast(asyncio.Transport, transport)

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """(status, body with its chunk framing taken off)."""
        assert self._transport is not None
        self._buffer.clear()
        self._end = -1
        self._body = 0
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._done
        status = int(self._buffer[9:12])
        body = bytes(self._buffer[self._body :])
        return status, _dechunk(body) if self._end == -2 else body

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._end == -1:
            self._read_head()
        if self._end >= 0:
            complete = len(self._buffer) >= self._end
        else:
            complete = self._end == -2 and self._buffer.endswith(b"\r\n0\r\n\r\n")
        if complete and self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _read_head(self) -> None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._buffer[:end]).lower()
        self._body = end + 4
        at = head.find(b"content-length:")
        self._end = self._body + int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else -2

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError(f"the server closed the connection ({error})"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _dechunk(raw: bytes) -> bytes:
    out = bytearray()
    at = 0
    while (line := raw.find(b"\r\n", at)) >= 0:
        size = int(raw[at:line], 16)
        out += raw[line + 2 : line + 2 + size]
        at = line + 4 + size
    return bytes(out)


def reply(body: bytes, stream: bool) -> tuple[str, int]:
    """(text, events) of a reply. Raises `ValueError` when it is none, or does not end properly."""
    if not stream:
        return str(json.loads(body)["choices"][0]["message"]["content"]), 0
    events = [event[6:] for event in body.split(b"\n\n") if event.startswith(b"data: ")]
    if not events or events[-1] != b"[DONE]":
        raise ValueError(f"the stream does not end in [DONE]: {body[-80:]!r}")
    words: list[str] = []
    for event in events[:-1]:
        for choice in json.loads(event)["choices"]:
            words.append(choice["delta"].get("content") or "")
    return "".join(words), len(events)


@dataclass(slots=True, kw_only=True)
class Target:
    """A server under test."""

    port: int
    key: str
    text: str  # what every reply must say
    pid: int  # of the server

    def request(self, body: bytes) -> bytes:
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Type: application/json\r\nAccept: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


class _Client:
    def __init__(self, target: Target, traffic: Traffic, stream: bool, name: str) -> None:
        self.target = target
        self.stream = stream
        self.conversation = Conversation(traffic, name)
        self.wire: Wire | None = None

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        _, self.wire = await loop.create_connection(Wire, "127.0.0.1", self.target.port)

    async def once(self, into: Result) -> None:
        assert self.wire is not None
        request = self.target.request(self.conversation.body())
        start = time.perf_counter()
        status, body = await asyncio.wait_for(self.wire.ask(request), ANSWER_WITHIN)
        took = time.perf_counter() - start
        if status != 200:
            _count(into, f"HTTP {status}: {body[:200]!r}")
            await asyncio.sleep(0.05)
            return
        text, events = reply(body, self.stream)
        if text != self.target.text:
            _count(into, f"another text: {text[:80]!r}")
        self.conversation.heard(text)
        into.latencies.append(took)
        into.events.append(events)


def _count(into: Result, what: str) -> None:
    into.wrong[what] = into.wrong.get(what, 0) + 1


async def measure(
    target: Target,
    *,
    agent: bool,
    stream: bool,
    clients: int,
    seconds: float,
    warm_up: float,
    name: str,
    requests: int = MAX_REQUESTS,
) -> Result:
    """One cell: warm-up (agents: at least the nine turns before the tenth), then `seconds` of measured calls.

    `requests`: the calls end after so many, too.
    """
    traffic = Traffic(agent=agent, stream=stream)
    crowd = [_Client(target, traffic, stream, f"{name}-{number}") for number in range(clients)]
    await asyncio.gather(*(client.connect() for client in crowd))
    warm = Result(seconds=warm_up, latencies=[], events=[])
    until = time.perf_counter() + warm_up
    first = FIRST_MEASURED if agent else 0

    async def prepare(client: _Client) -> None:
        while not warm.wrong and (time.perf_counter() < until or client.conversation.turn < first):
            await client.once(warm)

    await asyncio.gather(*(prepare(client) for client in crowd))
    result = Result(seconds=seconds, latencies=[], events=[], wrong=dict(warm.wrong))
    used = processor_seconds(target.pid)
    start = time.perf_counter()
    until = start + seconds

    async def drive(client: _Client) -> None:
        while not result.wrong and time.perf_counter() < until and len(result.latencies) < requests:
            await client.once(result)

    await asyncio.gather(*(drive(client) for client in crowd))
    result.seconds = time.perf_counter() - start
    result.processor_seconds = processor_seconds(target.pid) - used
    for client in crowd:
        assert client.wire is not None
        client.wire.close()
    return result
