"""Clients that stream from a running system and time each token as it arrives on the socket."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from benchmarks.demo.personas import Persona

TASTES = ("short", "casual", "bulleted", "formal")
# Seconds.
ANSWER_WITHIN = 60.0


@dataclass(slots=True)
class Heard:
    """What all clients saw while `listening`; times in seconds."""

    listening: bool = False
    gaps: list[float] = field(default_factory=list)  # between two tokens of one reply
    first_tokens: list[float] = field(
        default_factory=list
    )  # from the request until the first token
    replies: int = 0
    versions: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One SSE event and when it was complete."""

    at: float
    data: bytes


class Stream(asyncio.Protocol):
    """One connection, one streamed call at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        # Bytes until then, when.
        self._arrivals: list[tuple[int, float]] = []
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._arrivals.append((len(self._buffer), time.perf_counter()))
        refused = not self._buffer.startswith(b"HTTP/1.1 200")
        if (
            self._done is not None
            and not self._done.done()
            and (refused or self._buffer.endswith(b"\r\n0\r\n\r\n"))
        ):
            self._done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(
                ConnectionError("the server closed the connection in the middle of a reply")
            )

    async def ask(self, request: bytes) -> list[Event]:
        """The events of one reply. Raises `RuntimeError` when it is refused, `ConnectionError` when it breaks off."""
        assert self._transport is not None
        self._buffer.clear()
        self._arrivals.clear()
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await asyncio.wait_for(self._done, ANSWER_WITHIN)
        raw = bytes(self._buffer)
        if not raw.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(raw[:300].decode(errors="replace"))
        events: list[Event] = []
        at = raw.find(b"data: ")
        while at >= 0:
            end = raw.find(b"\n\n", at)
            when = self._arrivals[bisect_left(self._arrivals, (end + 2, 0.0))][1]
            events.append(Event(at=when, data=raw[at + 6 : end]))
            at = raw.find(b"data: ", end)
        return events

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def connect(port: int) -> Stream:
    """Open a connection to the gateway on this port."""
    return (await asyncio.get_running_loop().create_connection(Stream, "127.0.0.1", port))[1]


async def user(
    port: int, key: str, seed: int, heard: Heard, stop: asyncio.Event, pause: float = 0.0
) -> None:
    """Talk, session after session, with the reactions of a simulated user, until told to stop.

    `pause`: mean seconds before each message, exponentially distributed.
    """
    persona = Persona(taste=TASTES[seed % len(TASTES)], seed=seed)
    rng = random.Random(seed)  # type: ignore[arg-type]
    stream = await connect(port)
    while not stop.is_set():
        history: list[dict[str, str]] = []
        while not stop.is_set() and (words := persona.next_message(history)) is not None:
            history.append({"role": "user", "content": words})
            if pause:
                await _sleep_unless(stop, rng.expovariate(1 / pause))
            try:
                history.append(
                    {
                        "role": "assistant",
                        "content": await request_reply(stream, port, key, history, heard),
                    }
                )
            except (RuntimeError, ConnectionError, TimeoutError, ValueError) as error:
                heard.failures.append(f"{type(error).__name__}: {error}")
                stream.close()
                await asyncio.sleep(0.2)
                stream = await connect(port)
                break
    stream.close()


async def _sleep_unless(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


async def request_reply(
    stream: Stream, port: int, key: str, history: Sequence[Mapping[str, str]], heard: Heard
) -> str:
    """Request one reply and return its text. Raises as `Stream.ask` does, and `ValueError` for a stream that is cut."""
    began = time.perf_counter()
    return _take_in(await stream.ask(_request(port, key, history)), began, heard)


def _request(port: int, key: str, history: Sequence[Mapping[str, str]]) -> bytes:
    body = json.dumps(
        {"model": "openclaw", "stream": True, "messages": history, "temperature": 1.0}
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _take_in(events: Sequence[Event], began: float, heard: Heard) -> str:
    """The text of a reply that was requested at `began`.

    Raises `ValueError` when it has no finish or does not end in [DONE].
    """
    words: list[str] = []
    times: list[float] = []
    finish = version = None
    for event in events[:-1]:
        chunk = json.loads(event.data)
        version = chunk.get("system_fingerprint") or version
        for choice in chunk.get("choices", ()):
            finish = choice.get("finish_reason") or finish
            if text := choice["delta"].get("content"):
                words.append(text)
                times.append(event.at)
    if finish is None or not events or events[-1].data != b"[DONE]":
        raise ValueError(f"a stream ended without a finish: {events[-1:]}")
    if heard.listening:
        heard.replies += 1
        heard.first_tokens += [at - began for at in times[:1]]
        heard.gaps += [later - earlier for earlier, later in itertools.pairwise(times)]
        heard.versions.add(str(version))
    return "".join(words)
