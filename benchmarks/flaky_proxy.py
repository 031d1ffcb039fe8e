"""A proxy in front of a server on this machine, which answers a share of the requests with an error, or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Literal, Self

import aiohttp
from aiohttp import web

from openclaw_rl.common.sockets import free_port

Trouble = int | Literal["hang", "lose"]
"""An HTTP status; no answer until the client gives up; or the request is done and its answer lost."""

_HOP_HEADERS = (
    "connection",
    "content-length",
    "content-encoding",
    "host",
    "keep-alive",
    "transfer-encoding",
)
# Bytes.
_LARGEST_BODY = 1 << 30


class FlakyProxy:
    """Runs in a thread between entry and exit. `begin_trouble` and `end_trouble` may be called from any thread."""

    def __init__(self, target: str) -> None:
        """`target`: address of the server."""
        self._target = target
        self._port = free_port()
        self._trouble: Trouble | None = None
        self._every = 2
        self._seen = 0
        self._path = ""
        # Requests that had no answer of the server.
        self.refused = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, daemon=True, name="flaky-proxy"
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def begin_trouble(self, trouble: Trouble, *, every: int = 2, path: str = "") -> None:
        """From now on, the next request and every so many after it are answered so. `path`: whose path ends so."""
        self._every = every
        self._seen = every - 1
        self._path = path
        self._trouble = trouble

    def end_trouble(self) -> None:
        self._trouble = None

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)
        return self

    async def _start(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(limit=0)
        )
        app = web.Application(client_max_size=_LARGEST_BODY)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()

    async def _answer(self, request: web.Request) -> web.Response:
        trouble = self._trouble if request.path.endswith(self._path) else None
        self._seen += trouble is not None
        if trouble is not None and self._seen % self._every == 0:
            self.refused += 1
            if trouble == "hang":
                # Cancelled when the client gives up.
                await asyncio.Event().wait()
            if trouble == "lose":
                await self._forward(request)
                assert request.transport is not None
                request.transport.abort()
                raise web.HTTPBadGateway
            assert isinstance(trouble, int)
            return web.json_response({"detail": "trouble on purpose"}, status=trouble)
        try:
            return await self._forward(request)
        except aiohttp.ClientError as error:
            # As if the client had reached the server, which is down.
            if request.transport is not None:
                request.transport.abort()
            raise web.HTTPBadGateway(text=str(error)) from error

    async def _forward(self, request: web.Request) -> web.Response:
        async with self._session.request(
            request.method,
            self._target + request.path_qs,
            headers=_without_hop(request.headers),
            data=await request.read(),
        ) as found:
            return web.Response(
                status=found.status, headers=_without_hop(found.headers), body=await found.read()
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._session.close()


def _without_hop(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_HEADERS}
