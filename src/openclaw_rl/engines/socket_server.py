"""The Unix socket of an engine process: client connections, and the end with its parent. Imports no model library."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import cast

import msgspec

from openclaw_rl.common.frames import FrameDecoder, InvalidFrame
from openclaw_rl.common.sockets import clear_socket
from openclaw_rl.common.worker_loop import stop_on_signals, wait_or_stop
from openclaw_rl.engines.embedded import protocol

log = logging.getLogger(__name__)

# Bytes that a client may leave unread before it is disconnected.
_MAX_UNREAD_BYTES = 64 * 2**20
# Seconds.
_PARENT_POLL_SECONDS = 1.0


class EngineConnection(asyncio.Protocol):
    """One client connection. `handle_call` gets each call; a subclass cancels the calls of a lost connection."""

    def __init__(self, handle_call: Callable[[protocol.EngineCall], None]) -> None:
        self._handle_call = handle_call
        self._frame_decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not a subclass in uvloop.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frame_decoder.feed(data):
                self._handle_call(protocol.call_decoder.decode(body))
        except (InvalidFrame, msgspec.DecodeError) as error:
            log.warning("a client sent an invalid call (%s); disconnecting it", error)
            assert self._transport is not None
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.cancel_calls()

    def cancel_calls(self) -> None:
        """Cancel what runs for this client."""

    def send(self, answer: protocol.EngineReply) -> None:
        if self._transport is None:
            # The client disconnected before its reply was ready.
            return
        self._transport.write(protocol.encode_frame(answer))
        if self._transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            log.warning("a client left %d MiB unread; disconnecting it", _MAX_UNREAD_BYTES >> 20)
            self._transport.abort()


def bind_socket(path: Path) -> socket.socket:
    """Return a listening Unix socket at `path`, mode 600. Raise `EngineError` if another engine listens there."""
    clear_socket(path)
    bound = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        bound.bind(str(path))
    finally:
        os.umask(before)
    # Now: calls wait while the model loads, and a second engine detects this one.
    bound.listen()
    return bound


async def serve_until_stopped(
    connect: Callable[[], EngineConnection],
    bound: socket.socket,
    parent: int,
    work: Coroutine[None, None, None] | None = None,
) -> None:
    """Serve the socket until a signal or the end of the parent process. If `work` fails, raise its error."""
    loop = asyncio.get_running_loop()
    listener = await loop.create_unix_server(connect, sock=bound)
    tasks = [loop.create_task(each) for each in (_wait_for_end(parent), work) if each is not None]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[-1].done():
            # A failed step ends the process: its batch is lost; the supervisor reports why.
            tasks[-1].result()
    finally:
        listener.close()
        for task in tasks:
            task.cancel()


async def _wait_for_end(parent: int) -> None:
    stop = stop_on_signals()
    while not stop.is_set():
        if os.getppid() != parent:
            log.warning("engine: the parent process is gone; exiting")
            return
        await wait_or_stop(stop, _PARENT_POLL_SECONDS)
