"""Read request bodies, bounded in time, in bytes and in JSON values; compressed ones are inflated in threads.

aiohttp inflates nothing (`GatewayConnection`): it would do so on the event loop, and before the key is checked.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import cast

from aiohttp import web

from openclaw_rl.common.large_requests import call_in, run_large
from openclaw_rl.errors import RequestError
from openclaw_rl.serve.body_budget import SMALL_BODY_BYTES, BodyBudget, BodyLease, displaced_error
from openclaw_rl.serve.chat_request import ChatRequest
from openclaw_rl.serve.dialects.json_repair import DecodeRequest, decode_repaired
from openclaw_rl.serve.http_connection import GatewayConnection, error_summary
from openclaw_rl.serve.prompt_builder import BUILD_IN_THREAD_BYTES
from openclaw_rl.settings.load import ServeConfig

# Objects, lists and strings of a body, which are decoded while the GIL is held: 0.1 s.
MAX_JSON_VALUES = 100_000
# Bounds the numbers of a body: token ids of prompts are many, and decoded faster.
MAX_JSON_COMMAS = 2_000_000
# Name -> wbits.
_ENCODINGS = {"": None, "identity": None, "gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
# Inflated at once.
_PIECE_BYTES = 2**20
# Compressed bytes that are inflated at once; zlib copies what remains of them.
_SLICE_BYTES = 64 * 1024
_MAX_GZIP_MEMBERS = 1000
# Bytes whose values are counted at once, while the GIL is held.
_COUNT_BYTES = 2**20
_DISCARD_BYTES_PER_SECOND = 100e6
_DISCARD_PAUSE_SECONDS = 0.1
_DISCARD_SECONDS = 5.0
# Reserved at once of a body whose size is unknown.
_RESERVED_BYTES = 2**20
SizeCheck = Callable[[int], None]


class _BodyParts:
    """The bytes of a body so far. Its block drops them: the traceback of an error would keep them alive."""

    def __init__(
        self, limit: int, check_size: SizeCheck | None, *, setting: str = "serve.max_body_bytes"
    ) -> None:
        """`check_size` raises `RequestError` for a size in bytes that is too large. `setting`: of the limit."""
        self._limit = limit
        self._check_size = check_size
        self._setting = setting
        self._parts: list[bytes] = []
        self.size = 0

    def __enter__(self) -> _BodyParts:
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.clear()

    def check(self, size: int) -> None:
        """Raise `RequestError` if a body of `size` bytes is too large."""
        if size > self._limit:
            raise RequestError(
                f"the body is larger than {self._limit} bytes ({self._setting}).", status=413
            )
        if self._check_size is not None:
            self._check_size(size)

    def append(self, part: bytes) -> None:
        self.size += len(part)
        self.check(self.size)
        self._parts.append(part)

    def of_wire(self) -> _BodyParts:
        """Return the parts of the compressed bytes of this body, with the same limit."""
        return _BodyParts(self._limit, None, setting=self._setting)

    def join(self) -> bytes:
        return b"".join(self._parts)


async def read_small_body(request: web.Request, serve: ServeConfig) -> bytes:
    """Read a body of which `SMALL_BODY_BYTES` are enough. Raises as `read_body` does."""
    limit = min(SMALL_BODY_BYTES, serve.max_body_bytes)
    async with _leased(request) as lease:
        with _BodyParts(limit, None, setting="of this route") as parts:
            return await _read(request, serve, lease, parts)


async def read_body(
    request: web.Request, serve: ServeConfig, check_size: SizeCheck | None = None
) -> bytes:
    """Read the body, and inflate it if it is compressed. The caller has checked the key.

    `check_size` raises `RequestError` for a size in bytes that is too large: before the body is read, if it is known.
    Raises `RequestError`: 400 for bytes that cannot be read, 408, 413 and 415 for the time, the size and the encoding,
    429 if it gave way to other bodies.
    """
    async with _leased(request) as lease:
        with _BodyParts(serve.max_body_bytes, check_size) as parts:
            return await _read(request, serve, lease, parts)


@asynccontextmanager
async def _leased(request: web.Request) -> AsyncIterator[BodyLease]:
    """Yield the share of a request in the budget of all bodies."""
    connection = cast(GatewayConnection, request.protocol)

    def interrupt() -> None:
        request.content.set_exception(web.RequestPayloadError("it gave way to another body"))

    lease = connection.bodies.open_lease(is_ticket=connection.is_ticket, interrupt=interrupt)
    try:
        yield lease
    finally:
        connection.bodies.close_lease(lease)


async def _read(
    request: web.Request, serve: ServeConfig, lease: BodyLease, inflated: _BodyParts
) -> bytes:
    """Read the body. `inflated`: takes its content, and bounds it."""
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in _ENCODINGS:
        raise RequestError(
            f"Content-Encoding: expected gzip, deflate or none, got {encoding[:40]!r}.", status=415
        )
    wbits = _ENCODINGS[encoding]
    if wbits is None:
        return await _receive_all(request, serve, lease, inflated)
    with inflated.of_wire() as wire:
        body = await _receive_all(request, serve, lease, wire)
    budget = cast(GatewayConnection, request.protocol).bodies
    return await _inflate(body, wbits, inflated, lease, budget)


async def _receive_all(
    request: web.Request, serve: ServeConfig, lease: BodyLease, received: _BodyParts
) -> bytes:
    """Return the bytes that the client sends. Raises as `read_body` does."""
    received.check(request.content_length or 0)
    budget = cast(GatewayConnection, request.protocol).bodies
    try:
        async with asyncio.timeout(serve.body_timeout):
            await _receive(request, received, lease, budget)
    except TimeoutError:
        raise RequestError(
            f"the body did not arrive within {serve.body_timeout:g} seconds (serve.body_timeout).",
            status=408,
        ) from None
    except (web.RequestPayloadError, web.PayloadAccessError) as error:
        if lease.is_displaced:
            raise displaced_error(lease) from None
        raise RequestError(f"the body cannot be read: {error_summary(error)}.") from None
    lease.is_complete = True
    return received.join()


async def _receive(
    request: web.Request, received: _BodyParts, lease: BodyLease, budget: BodyBudget
) -> None:
    """Read what the client sends. The bytes are reserved before they are read, as far as their number is known."""
    await budget.reserve(lease, request.content_length or 0)
    await cast(GatewayConnection, request.protocol).ask_for_body(request)
    if request.content.is_eof():
        # The whole body came with the head, as short ones do.
        received.append(request.content.read_nowait())
        return
    while part := await request.content.readany():
        lease.note_received(len(part))
        received.append(part)
        if received.size > lease.reserved:
            await budget.reserve(lease, max(_RESERVED_BYTES, received.size - lease.reserved))


async def _inflate(
    body: bytes, wbits: int, inflated: _BodyParts, lease: BodyLease, budget: BodyBudget
) -> bytes:
    """Inflate in threads, a piece each, so that a cancelled request ends after the piece."""
    pieces = _inflate_pieces(body, wbits)
    try:
        while (piece := await run_large(next, pieces, None)) is not None:
            inflated.append(piece)
            await budget.reserve(lease, len(piece))
    except zlib.error as error:
        raise RequestError(f"the body cannot be decompressed: {error}.") from None
    return inflated.join()


def _inflate_pieces(body: bytes, wbits: int) -> Iterator[bytes]:
    """Yield the content in pieces of at most `_PIECE_BYTES`. Raises `zlib.error`."""
    wbits = _window_bits(body, wbits)
    inflater = zlib.decompressobj(wbits)
    members = 1
    for start in range(0, len(body), _SLICE_BYTES):
        rest = body[start : start + _SLICE_BYTES]
        while True:
            # Gzip may have several members.
            if inflater.eof and rest:
                members += 1
                if members > _MAX_GZIP_MEMBERS:
                    raise zlib.error(f"it has more than {_MAX_GZIP_MEMBERS} members")
                inflater = zlib.decompressobj(wbits)
            piece = inflater.decompress(rest, _PIECE_BYTES)
            if piece:
                yield piece
            rest = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
            if not rest and len(piece) < _PIECE_BYTES:
                break
    if not inflater.eof:
        raise zlib.error("it ends too early")


def _window_bits(body: bytes, wbits: int) -> int:
    """Return `wbits`, negative for deflate without the header of RFC 1950, as some clients send it."""
    is_bare = wbits == zlib.MAX_WBITS and body != b"" and body[0] & 0x0F != zlib.DEFLATED
    return -zlib.MAX_WBITS if is_bare else wbits


async def decode_body(
    decode: DecodeRequest,
    request: web.Request,
    serve: ServeConfig,
    check_size: SizeCheck | None,
) -> ChatRequest:
    """Read and decode the body; in a thread if it is large, so that streams do not stall. Raises `RequestError`."""
    body = await read_body(request, serve, check_size)
    large = len(body) > BUILD_IN_THREAD_BYTES
    await call_in(check_value_count, body, in_thread=large)
    return await call_in(decode_repaired, decode, body, request.headers, in_thread=large)


def check_value_count(body: bytes) -> None:
    """Raise `RequestError` if JSON has more values than `MAX_JSON_VALUES` and `MAX_JSON_COMMAS`. Keys are strings.

    Time and memory of decoding, hashing and rendering depend on these numbers. Nothing is decoded here: the characters
    are counted, and only if there are many, those outside strings.
    """
    # Each of them takes a byte at least.
    if len(body) <= min(MAX_JSON_VALUES, MAX_JSON_COMMAS):
        return
    strings = body.count(b'"') // 2
    if (
        strings + body.count(b"{") + body.count(b"[") <= MAX_JSON_VALUES
        and body.count(b",") <= MAX_JSON_COMMAS
    ):
        return
    quotes = openers = commas = start = 0
    while start < len(body):
        end = start + _COUNT_BYTES
        # An escape is not cut in two.
        while body[end - 1 : end] == b"\\":
            end += 1
        unescaped = body[start:end].replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = unescaped.split(b'"')
        outside = b"".join(parts[quotes % 2 :: 2])
        quotes += len(parts) - 1
        openers += outside.count(b"{") + outside.count(b"[")
        commas += outside.count(b",")
        if openers + quotes // 2 > MAX_JSON_VALUES or commas > MAX_JSON_COMMAS:
            raise RequestError(
                f"the body has too many JSON values: at most {MAX_JSON_VALUES} objects, lists and strings, and "
                f"{MAX_JSON_COMMAS} numbers are read. Send fewer messages or fields.",
                code="request_too_large",
                status=413,
            )
        start = end


async def discard_body(request: web.Request) -> None:
    """Read the rest of the body without keeping it: most clients read no response before they have sent everything.

    Paced, so that streams do not stall. Stops when the client pauses, or after some seconds; aiohttp then discards
    what comes within a second, and closes the connection.
    """
    end = time.monotonic() + _DISCARD_SECONDS
    with suppress(TimeoutError, web.RequestPayloadError, web.PayloadAccessError):
        while time.monotonic() < end:
            async with asyncio.timeout(_DISCARD_PAUSE_SECONDS):
                part = await request.content.readany()
            if not part:
                return
            await asyncio.sleep(len(part) / _DISCARD_BYTES_PER_SECOND)
