"""`Expect: 100-continue`: the client asks whether it may send its body. It may once the key and the size are checked.

aiohttp would answer it before any handler runs.
"""

from __future__ import annotations

from aiohttp import HttpVersion11, hdrs
from aiohttp.http_parser import RawRequestMessage

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
"""Answer to a client that waits for it."""
_EXPECTATION = "100-continue"


def take_expectation(message: RawRequestMessage) -> tuple[RawRequestMessage, bool]:
    """Return the head without the expectation that the gateway answers itself, and whether it had one."""
    if message.headers.get(hdrs.EXPECT, "").lower() != _EXPECTATION:
        return message, False
    headers = message.headers.copy()
    del headers[hdrs.EXPECT]
    waits = message.version >= HttpVersion11
    return message._replace(headers=type(message.headers)(headers)), waits
