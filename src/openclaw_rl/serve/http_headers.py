"""Headers of every request and response: the host's name, the request id, CORS for the origins of `serve.cors_origins`.

The library aiohttp-cors covers known routes only, so a page could not read the error for an unknown one.
"""

from __future__ import annotations

import ipaddress
import random
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial

from aiohttp import hdrs, web

from openclaw_rl.errors import RequestError
from openclaw_rl.settings.load import ServeConfig

REQUEST_ID_HEADER = "x-request-id"
PAGE_PATH = "/ui"
_REQUEST_ID = re.compile(r"[\x20-\x7e]{1,128}")
# Ids need to be unique and cheap, not secret.
_id_generator = random.Random(random.SystemRandom().getrandbits(256))
_CORS_METHODS = "GET, POST, DELETE, OPTIONS"
_EXPOSED_HEADERS = (
    "X-OpenClaw-Ignored, X-OpenClaw-Degraded, X-OpenClaw-Lessons, X-OpenClaw-Withdrawn-Lessons, x-request-id, "
    "Retry-After"
)
# For which a browser keeps the answer.
_PREFLIGHT_SECONDS = "600"
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def accepted_hosts(serve: ServeConfig) -> frozenset[str] | None:
    """Return the names that a request may give in its Host header; None if it may give any.

    A web page whose name was made to resolve to this machine (DNS rebinding) gives its own name. On a loopback bind
    that is refused, because some paths need no key there. On any other bind all of them need one.
    """
    if "*" in serve.allowed_hosts or not (serve.allowed_hosts or serve.is_loopback):
        return None
    return frozenset(map(_host_name, (*_LOOPBACK_NAMES, serve.host, *serve.allowed_hosts)))


def check_host(request: web.BaseRequest, accepted: frozenset[str] | None) -> None:
    """Raise `RequestError` (403) if the Host header or the request's absolute address has no accepted name.

    HTTP/1.0 needs no such header.
    """
    host = request.headers.get(hdrs.HOST)
    if accepted is None or host is None:
        return
    refused = next(
        (name for name in (host, request.host or "") if _host_name(name) not in accepted), None
    )
    if refused is None:
        return
    raise RequestError(
        f"the Host header or the address has {refused[:80]!r}, which is no name of this gateway. Use 127.0.0.1 or "
        "localhost in the base URL, or add the name to serve.allowed_hosts.",
        code="host_not_allowed",
        status=403,
    )


# A client sends the same name with every request.
@lru_cache(maxsize=64)
def _host_name(host: str) -> str:
    """Return a Host header's name in lower case, without its port; an IPv6 address without brackets."""
    name = host.strip().lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name.rstrip(".")


def is_page_path(path: str) -> bool:
    """Return whether a path is of the page, which no other origin may read, whatever `serve.cors_origins` allows."""
    return path == PAGE_PATH or path.startswith(PAGE_PATH + "/")


def request_id(headers: Mapping[str, str]) -> str:
    """Return the client's `x-request-id` if it is printable and at most 128 characters long, else a new id."""
    sent = headers.get(REQUEST_ID_HEADER, "")
    return sent if _REQUEST_ID.fullmatch(sent) else f"req_{_id_generator.getrandbits(128):032x}"


def add_header_signals(app: web.Application, origins: Sequence[str]) -> None:
    """Add the headers to every response of `app`, also to errors and streams."""
    app.on_response_prepare.append(partial(_add_headers, frozenset(origins)))


async def _add_headers(
    origins: frozenset[str], request: web.BaseRequest, response: web.StreamResponse
) -> None:
    response.headers.setdefault(REQUEST_ID_HEADER, request_id(request.headers))
    if origins and not is_page_path(request.path):
        response.headers.update(_cors_headers(origins, request))


def _cors_headers(origins: frozenset[str], request: web.BaseRequest) -> dict[str, str]:
    origin = request.headers.get(hdrs.ORIGIN, "")
    if not origin or not origins & {origin, "*"}:
        return {hdrs.VARY: "Origin"}
    allowed = "*" if "*" in origins else origin
    return {
        hdrs.ACCESS_CONTROL_ALLOW_ORIGIN: allowed,
        hdrs.ACCESS_CONTROL_EXPOSE_HEADERS: _EXPOSED_HEADERS,
        hdrs.VARY: "Origin",
    }


def preflight_response(request: web.Request, origins: Sequence[str]) -> web.Response | None:
    """Return the answer to a browser's preflight request, which has no key; None for other requests."""
    if (
        request.method != hdrs.METH_OPTIONS
        or hdrs.ACCESS_CONTROL_REQUEST_METHOD not in request.headers
        or not origins
        or is_page_path(request.path)
    ):
        return None
    wanted = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "")
    headers = {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: _CORS_METHODS,
        hdrs.ACCESS_CONTROL_ALLOW_HEADERS: wanted,
        hdrs.ACCESS_CONTROL_MAX_AGE: _PREFLIGHT_SECONDS,
    }
    return web.Response(
        status=204, headers={name: value for name, value in headers.items() if value}
    )
