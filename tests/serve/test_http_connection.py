"""Bytes that never reach a handler: answered in the shape of their path, and one line in the log."""

from __future__ import annotations

import gzip
import json
import logging
import socket
from typing import Any

import pytest
from tests.serve.conftest import KEY, USER, Site, Start

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
BODY = json.dumps({"messages": [USER]}).encode()


def chat(
    *headers: str, body: bytes = BODY, method: str = "POST", length: bool = True, path: str = CHAT
) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {KEY}",
        "Connection: close",
    ]
    lines += [*headers, f"Content-Length: {len(body)}"] if length else headers
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def send(site: Site, request: bytes) -> tuple[int, dict[str, Any]]:
    """(status, the body's JSON) of what comes back until the connection is closed."""
    host, port = site.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=240) as connection:
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
    "an unknown expectation": (417, chat("Expect: a wonder")),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read(site: Site, name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "openclaw_rl.serve.http_connection")
    status, request = BAD[name]
    got, body = send(site, request)
    assert got == status
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["message"]
    lines = [
        r
        for r in caplog.records
        if r.name.startswith(("openclaw_rl.serve.conn", "aiohttp", "asyncio"))
    ]
    assert len(lines) <= 1
    assert not any(r.exc_info or "secret" in r.getMessage() for r in lines)
    assert site.count() == 0
    assert send(site, chat())[0] == 200


@pytest.mark.parametrize("path", [CHAT, "/v1/responses", MESSAGES, MESSAGES + "/count_tokens"])
def test_a_body_longer_than_any_prompt_is_refused_before_it_is_sent(site: Site, path: str) -> None:
    host, port = site.url.removeprefix("http://").split(":")
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 30000000\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=240) as connection:
        connection.sendall(head.encode())
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 400")
    assert (
        b"prompt is too long: " if MESSAGES in path else b"maximum context length is "
    ) in answer


def test_a_compressed_body_longer_than_any_prompt_is_refused(site: Site) -> None:
    long = json.dumps({"messages": [USER], "metadata": {"text": " " * 8_000_000}}).encode()
    status, body = send(site, chat("Content-Encoding: gzip", body=gzip.compress(long, 1)))
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")


PATHS = [
    MESSAGES,
    MESSAGES + "?beta=true",
    MESSAGES + "/count_tokens",
    MESSAGES + "/nowhere",
    CHAT,
    "/nowhere",
]


@pytest.mark.parametrize("path", PATHS)
def test_errors_have_the_shape_of_their_path(start: Start, path: str) -> None:
    """Also where no handler has seen the request: who speaks Anthropic's format reads no other."""
    site = start(settings={"serve.max_body_bytes": 2000})
    found = "nowhere" not in path
    for status, request in (
        (400, chat("X A: no header", path=path)),
        (431, chat("X-A: " + "a" * 70_000, path=path)),
        (417, chat("Expect: a wonder", path=path)),
        (405 if found else 404, chat(method="PUT", path=path)),
        (413 if found else 404, chat(body=b"x" * 3000, path=path)),
        (400 if found else 404, chat(body=b"{", path=path)),
        (401 if found else 404, chat(path=path).replace(KEY.encode(), b"wrong")),
    ):
        got, body = send(site, request)
        assert got == status
        assert list(body) == (["type", "error", "request_id"] if "messages" in path else ["error"])
        assert list(body["error"])[:2] == (
            ["type", "message"] if "messages" in path else ["message", "type"]
        )
        assert body["error"]["message"]


def test_a_path_is_forgotten_with_the_next_request(site: Site) -> None:
    """On one connection, each error has the shape of its own request."""
    host, port = site.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=240) as connection:
        connection.sendall(chat(path=MESSAGES, body=b"{").replace(b"Connection: close\r\n", b""))
        assert b'"request_id"' in connection.recv(65536)
        connection.sendall(chat("X A: no header"))
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b"400 Bad Request" in answer
    assert b'"request_id"' not in answer


def test_what_can_be_read(site: Site) -> None:
    for request in (
        chat("Content-Encoding: gzip", body=gzip.compress(BODY)),
        chat("Content-Encoding: identity"),
        chat("X-Cookie: " + "a" * 30000),
    ):
        assert send(site, request)[0] == 200
