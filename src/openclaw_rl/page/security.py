"""Checks before the page answers: the gateway's key, the page's own origin, and the cookie's name."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import urlsplit

from aiohttp import web

KEY_HEADER = "X-OpenClaw-Page-Key"
"""Header by which the gateway shows that a request comes through it."""
SIGNED_IN_HEADER = "X-OpenClaw-Page-Session"
"""Header of a response to a browser that is signed in; the gateway removes it."""
SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}


def cookie_name(secret: bytes) -> str:
    """Return the name of the cookie: browsers share cookies between the ports of a machine, so homes need their own."""
    digest = hashlib.blake2b(secret, digest_size=4, person=b"openclaw-cookie").hexdigest()
    return f"openclaw_{digest}"


def has_gateway_key(request: web.Request, key: str) -> bool:
    sent = request.headers.get(KEY_HEADER, "").encode("utf-8", "surrogateescape")
    return hmac.compare_digest(sent, key.encode())


def is_own_origin(request: web.Request) -> bool:
    """Return whether a request that changes something comes from a page of this gateway.

    Other ports of this machine are the same site for a browser, which therefore sends the cookie from there as well.
    """
    if request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        return False
    origin = request.headers.get("Origin", "")
    return (
        bool(origin) and urlsplit(origin).netloc.lower() == request.headers.get("Host", "").lower()
    )


def may_read(request: web.Request) -> bool:
    """Return whether a request that reads is a person's navigation, or comes from a page of this gateway."""
    site = request.headers.get("Sec-Fetch-Site", "none")
    return site in ("none", "same-origin") or request.headers.get("Sec-Fetch-Mode") == "navigate"
