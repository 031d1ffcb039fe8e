"""Sessions of aiohttp."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from openclaw_rl.common.http.proxy_rule import proxy_for


class _DirectedRequest(aiohttp.ClientRequest):
    """A request that chooses its proxy by its own address. Each redirect is a request of its own."""

    def __init__(self, method: str, url: URL, **options: Any) -> None:
        proxy = proxy_for(str(url))
        options["proxy"] = URL(proxy) if proxy else None
        super().__init__(method, url, **options)


def open_http_session(
    base_url: str | None = None,
    *,
    socket: Path | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: aiohttp.ClientTimeout | None = None,
    connections: int = 100,
    keep_alive: float = 15.0,
) -> aiohttp.ClientSession:
    """Return a session; an event loop must run.

    `socket`: of a server, to which all requests go, whatever their host. `connections`: at most so many at once; 0 is
    no limit. `keep_alive`: seconds for which an idle connection is kept. The default timeout is five minutes.
    """
    if socket is not None:
        connector: aiohttp.BaseConnector = aiohttp.UnixConnector(
            str(socket), limit=connections, keepalive_timeout=keep_alive
        )
        request_class = aiohttp.ClientRequest
    else:
        connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=keep_alive)
        request_class = _DirectedRequest
    # trust_env would send keys of ~/.netrc, too.
    return aiohttp.ClientSession(
        base_url,
        connector=connector,
        headers=headers,
        timeout=timeout or aiohttp.ClientTimeout(total=300, sock_connect=30),
        request_class=request_class,
        trust_env=False,
    )
