"""Headers of every response: the request id, and CORS for the origins of `serve.cors_origins`.

The library aiohttp-cors covers known routes only, so a page could not read the error for an unknown one.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from functools import partial

from aiohttp import hdrs, web

REQUEST_ID_HEADER = "x-request-id"
_REQUEST_ID = re.compile(r"[\x20-\x7e]{1,128}")
_CORS_METHODS = "GET, POST, DELETE, OPTIONS"
_EXPOSED_HEADERS = "X-OpenClaw-Ignored, x-request-id, Retry-After"
_PREFLIGHT_SECONDS = "600"  # for which a browser keeps the answer


def request_id(headers: Mapping[str, str]) -> str:
    """Return the client's `x-request-id` if it is printable and at most 128 characters long, else a new id."""
    sent = headers.get(REQUEST_ID_HEADER, "")
    return sent if _REQUEST_ID.fullmatch(sent) else "req_" + uuid.uuid4().hex


def add_header_signals(app: web.Application, origins: Sequence[str]) -> None:
    """Add the headers to every response of `app`, also to errors and streams."""
    app.on_response_prepare.append(partial(_add_headers, frozenset(origins)))


async def _add_headers(origins: frozenset[str], request: web.BaseRequest, response: web.StreamResponse) -> None:
    response.headers.setdefault(REQUEST_ID_HEADER, request_id(request.headers))
    response.headers.update(_cors_headers(origins, request))


def _cors_headers(origins: frozenset[str], request: web.BaseRequest) -> dict[str, str]:
    origin = request.headers.get(hdrs.ORIGIN, "")
    if not origin or not origins & {origin, "*"}:
        return {hdrs.VARY: "Origin"} if origins else {}
    allowed = "*" if "*" in origins else origin
    return {
        hdrs.ACCESS_CONTROL_ALLOW_ORIGIN: allowed,
        hdrs.ACCESS_CONTROL_EXPOSE_HEADERS: _EXPOSED_HEADERS,
        hdrs.VARY: "Origin",
    }


def preflight_response(request: web.Request, origins: Sequence[str]) -> web.Response | None:
    """Return the answer to a browser's preflight request, which has no key; None for other requests."""
    if request.method != hdrs.METH_OPTIONS or hdrs.ACCESS_CONTROL_REQUEST_METHOD not in request.headers or not origins:
        return None
    wanted = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "")
    headers = {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: _CORS_METHODS,
        hdrs.ACCESS_CONTROL_ALLOW_HEADERS: wanted,
        hdrs.ACCESS_CONTROL_MAX_AGE: _PREFLIGHT_SECONDS,
    }
    return web.Response(status=204, headers={name: value for name, value in headers.items() if value})
