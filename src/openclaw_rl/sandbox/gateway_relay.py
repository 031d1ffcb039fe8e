"""Relay from a socket in a box to the gateway, and to nothing else; and a port of the box for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from pathlib import Path

from openclaw_rl.common.assets import ASSETS
from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox.box import GATEWAY_FOLDER, GATEWAY_SOCKET, Box

_FORWARDER = "forward_gateway.py"
_READ_BYTES = 2**16
_MAX_CONNECTIONS = 64


class GatewayRelay:
    """Listens on a Unix socket and passes each connection on to one fixed address."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def open(self, folder: Path, user: int | None) -> None:
        """Make `folder`, which is shown in the box at `GATEWAY_FOLDER`, and listen.

        `user`: the only one who may connect; None: every user who knows the path.
        """
        socket = _make_folder(folder)
        self._server = await asyncio.start_unix_server(self._pass_on, str(socket))
        if user is not None and user != os.geteuid():
            os.chown(socket, user, -1)
        elif user is None:
            socket.chmod(0o666)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) <= _MAX_CONNECTIONS:
                await self._join_streams(reader, writer)
        except (OSError, asyncio.CancelledError):
            # The gateway is away, or the box was closed: the client sees an end.
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _join_streams(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        gateway_reader, gateway_writer = await asyncio.open_connection(self._host, self._port)
        try:
            await asyncio.gather(
                _copy_stream(reader, gateway_writer), _copy_stream(gateway_reader, writer)
            )
        finally:
            gateway_writer.close()


def _make_folder(folder: Path) -> Path:
    folder.mkdir(mode=0o755)
    shutil.copyfile(ASSETS / "sandbox" / _FORWARDER, folder / _FORWARDER)
    return folder / Path(GATEWAY_SOCKET).name


async def _copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_READ_BYTES):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


async def forward_gateway_port(box: Box, port: int = 8377) -> str:
    """Start a program in the box that listens on a port there, for clients that know no sockets; return its URL.

    Raises `SandboxError` if the box has no Python, or was not granted the gateway.
    """
    result = await box.run(
        f"python3 {GATEWAY_FOLDER}/{_FORWARDER} {GATEWAY_SOCKET} {port}", cwd="/", time_limit=20
    )
    if result.exit_code:
        reason = result.stderr.decode(errors="replace").strip()
        raise SandboxError(f"the gateway's port was not opened in the box: {reason[-500:]}")
    return f"http://127.0.0.1:{port}"
