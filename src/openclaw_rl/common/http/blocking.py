"""Requests that block, with the standard library."""

from __future__ import annotations

import urllib.request
from http.client import HTTPMessage, HTTPResponse
from typing import IO, cast
from urllib.parse import urlsplit

from openclaw_rl.common.http.proxy_rule import is_on_this_machine


class _ProxyRule(urllib.request.ProxyHandler):
    """Sends requests to the proxies of the environment, unless they stay on this machine. Redirects pass here, too."""

    def proxy_open(self, req: urllib.request.Request, proxy: str, type: str) -> HTTPResponse | None:
        if is_on_this_machine(urlsplit(f"//{req.host}").hostname or ""):
            return None
        return cast("HTTPResponse | None", super().proxy_open(req, proxy, type))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes each redirect an `HTTPError`: the key would go with the request, to whatever address the answer names."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        return None


def open_url(
    request: urllib.request.Request | str, *, timeout: float, follow_redirects: bool = True
) -> HTTPResponse:
    """Send a request and return the answer, which is to be closed. `timeout`: seconds without a byte.

    Raises `urllib.error.HTTPError` for a status of an error, and without `follow_redirects` for a redirect;
    `OSError` or `http.client.HTTPException` if there is no whole answer.
    """
    handlers: list[type[urllib.request.BaseHandler]] = [_ProxyRule]
    if not follow_redirects:
        handlers.append(_NoRedirects)
    response = urllib.request.build_opener(*handlers).open(request, timeout=timeout)
    return cast("HTTPResponse", response)
