"""The least that a proxy can do: parse the request, send it on, parse and re-serialise what comes back.

python passthrough.py UPSTREAM_BASE_URL
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
import msgspec
import uvloop
from aiohttp import web

JSON_HEADERS = {"Content-Type": "application/json"}
SSE_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Proxy:
    """One upstream, one client session."""

    def __init__(self, upstream: str) -> None:
        self._url = f"{upstream}/chat/completions"
        self._session: aiohttp.ClientSession | None = None

    async def start(self, app: web.Application) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Forward one call."""
        assert self._session is not None
        body = _decode(await request.read())
        if not isinstance(body, dict) or "messages" not in body:
            return web.json_response({"error": {"message": "messages: expected"}}, status=400)
        async with self._session.post(
            self._url, data=_encode(body), headers=JSON_HEADERS
        ) as answer:
            if not body.get("stream"):
                return web.Response(
                    body=_encode(_decode(await answer.read())), headers=JSON_HEADERS
                )
            out = web.StreamResponse(headers=SSE_HEADERS)
            await out.prepare(request)
            buffer = b""
            async for data in answer.content.iter_any():
                *events, buffer = (buffer + data).split(b"\n\n")
                if events:
                    await out.write(b"".join(_again(event) for event in events))
            await out.write_eof()
            return out


def _again(event: bytes) -> bytes:
    data = event.removeprefix(b"data: ")
    return b"data: " + (data if data == b"[DONE]" else _encode(_decode(data))) + b"\n\n"


async def serve(upstream: str) -> None:
    """Serve until killed; prints the port."""
    proxy = Proxy(upstream)
    app = web.Application(client_max_size=1 << 25)
    app.on_startup.append(proxy.start)
    app.router.add_post("/v1/chat/completions", proxy.chat)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
