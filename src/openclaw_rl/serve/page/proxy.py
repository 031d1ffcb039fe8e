"""Pass requests for the page on to its own process.

The page is checked by its own process (`page/app.py`): this one only moves bytes.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import cast

import aiohttp
from aiohttp import web

from openclaw_rl.common.gateway_address import page_key, running_page
from openclaw_rl.common.http.sessions import open_http_session
from openclaw_rl.errors import RequestError
from openclaw_rl.serve.http_connection import GatewayConnection
from openclaw_rl.serve.http_headers import PAGE_PATH
from openclaw_rl.serve.page.root import show_root, starting_page
from openclaw_rl.settings.load import Config

MAX_BODY_BYTES = 1024 * 1024
"""Beyond it the gateway refuses; the page itself says more, and takes less."""
_KEY_HEADER = "X-OpenClaw-Page-Key"
_SIGNED_IN_HEADER = "X-OpenClaw-Page-Session"
_PASSED_REQUEST_HEADERS = (
    "Host",
    "Cookie",
    "Origin",
    "Content-Type",
    "Accept",
    "HX-Request",
    "HX-Target",
    "Sec-Fetch-Site",
    "Sec-Fetch-Mode",
    "If-None-Match",
    "If-Modified-Since",
)
_KEPT_BACK_HEADERS = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "server", "date"}
)
_STREAM_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=600)
_CONNECTIONS = 64


class PageProxy:
    """Routes for browsers. The page's process may be absent: replies do not depend on it."""

    def __init__(self, config: Config, secret: bytes) -> None:
        """`secret`: of the store."""
        self._config = config
        self._key = page_key(secret)
        self._session: aiohttp.ClientSession | None = None

    def add_routes(self, app: web.Application) -> None:
        """Add the route of the root, and those of the page if it is served."""
        has_page = self._config.serve.page
        app.router.add_get("/", partial(show_root, has_page=has_page))
        if has_page:
            for path in (PAGE_PATH, PAGE_PATH + "/{tail:.*}"):
                app.router.add_get(path, self.pass_on)
                app.router.add_post(path, self.pass_on)
            app.on_cleanup.append(self._close)

    async def _close(self, _app: web.Application) -> None:
        if self._session is not None:
            await self._session.close()

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """Return the answer of the page's process. Raises `RequestError` for a body that is too large."""
        port = await asyncio.to_thread(running_page, self._config.home_dir)
        if port is None:
            return starting_page()
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise RequestError(
                f"the form is larger than {MAX_BODY_BYTES} bytes.", code="too_large", status=413
            )
        await cast(GatewayConnection, request.protocol).ask_for_body(request)
        # Passed on as it comes: the page checks the cookie before it reads the body, and bounds its size.
        body = request.content if request.method == "POST" else None
        headers = {
            name: request.headers[name]
            for name in _PASSED_REQUEST_HEADERS
            if name in request.headers
        }
        headers[_KEY_HEADER] = self._key
        session = self._open_session()
        # Without the host of an absolute address.
        url = f"http://127.0.0.1:{port}{request.rel_url.raw_path_qs}"
        try:
            answer = await session.request(
                request.method, url, headers=headers, data=body, allow_redirects=False
            )
        except aiohttp.ClientConnectionError:
            # It ended meanwhile, and starts again.
            return starting_page()
        async with answer:
            return await self._relay(request, answer)

    async def _relay(
        self, request: web.Request, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        """Send the page's answer on, piece by piece."""
        if _SIGNED_IN_HEADER in answer.headers:
            cast(GatewayConnection, request.protocol).mark_owner()
        response = web.StreamResponse(status=answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in _KEPT_BACK_HEADERS and name != _SIGNED_IN_HEADER:
                response.headers.add(name, value)
        if answer.content_length is not None:
            response.content_length = answer.content_length
        await response.prepare(request)
        try:
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
        except aiohttp.ClientError:
            # The page's process ended: the browser must not take the part for the whole.
            cast(GatewayConnection, request.protocol).force_close()
        return response

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = open_http_session(timeout=_STREAM_TIMEOUT, connections=_CONNECTIONS)
        return self._session
