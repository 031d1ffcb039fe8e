"""Bytes that never reach a handler: answered in OpenAI's shape, and one line in the log."""

from __future__ import annotations

import gzip
import json
import logging
import socket
from typing import Any

import pytest
from tests.serve.conftest import KEY, USER, Site

BODY = json.dumps({"messages": [USER]}).encode()


def chat(*headers: str, body: bytes = BODY, method: str = "POST", length: bool = True) -> bytes:
    lines = [f"{method} /v1/chat/completions HTTP/1.1", "Host: x", f"Authorization: Bearer {KEY}", "Connection: close"]
    lines += [*headers, f"Content-Length: {len(body)}"] if length else headers
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def send(site: Site, request: bytes) -> tuple[int, dict[str, Any]]:
    """(status, the body's JSON) of what comes back until the connection is closed."""
    host, port = site.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(request)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


BAD = {
    "an unknown method": (400, chat(method="FROB")),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "a bad chunk size": (400, chat("Transfer-Encoding: chunked", body=b"zz\r\n", length=False)),
    "a huge header": (431, chat("X-A: " + "secret" * 12000)),
    "a broken gzip body": (400, chat("Content-Encoding: gzip")),
    "half a gzip body": (400, chat("Content-Encoding: gzip", body=gzip.compress(BODY)[:-12])),
    "an unknown encoding": (415, chat("Content-Encoding: lzma")),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read(site: Site, name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "openclaw_rl.serve.connection")
    status, request = BAD[name]
    got, body = send(site, request)
    assert got == status
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["message"]
    lines = [r for r in caplog.records if r.name.startswith(("openclaw_rl.serve.conn", "aiohttp", "asyncio"))]
    assert len(lines) <= 1
    assert not any(r.exc_info or "secret" in r.getMessage() for r in lines)
    assert site.count() == 0
    assert send(site, chat())[0] == 200


def test_what_can_be_read(site: Site) -> None:
    for request in (
        chat("Content-Encoding: gzip", body=gzip.compress(BODY)),
        chat("Content-Encoding: identity"),
        chat("X-Cookie: " + "a" * 30000),
    ):
        assert send(site, request)[0] == 200
