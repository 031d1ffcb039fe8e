"""`Expect: 100-continue`: a body is asked for once the key and its size were checked."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.serve.conftest import KEY, USER, Site, Start

BODY = json.dumps({"messages": [USER], "max_tokens": 8}).encode()
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
PATHS = (
    "/v1/chat/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/chat/completions",
    "/openai/deployments/openclaw/chat/completions",
)


@contextmanager
def waiting_client(
    site: Site, path: str, *, key: str = KEY, size: int = len(BODY), version: str = "1.1"
) -> Iterator[socket.socket]:
    """A client that has sent its head, and waits for the gateway's word."""
    host, port = site.url.removeprefix("http://").split(":")
    head = (
        f"POST {path} HTTP/{version}\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Expect: 100-Continue\r\nContent-Length: {size}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=240) as connection:
        connection.sendall(head.encode())
        yield connection


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize(
    "path", [*PATHS, "/v1/completions", "/v1/responses", "/v1/feedback", "/internal/gate/replies"]
)
def test_a_wrong_key_is_refused_before_the_body(site: Site, path: str) -> None:
    with waiting_client(site, path, key="wrong") as connection:
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 401")
    assert CONTINUE not in answer
    assert b"Connection: close" in answer, "the body may follow all the same"


@pytest.mark.parametrize("path", PATHS)
def test_a_right_key_is_asked_for_its_body(site: Site, path: str) -> None:
    with waiting_client(site, path) as connection:
        assert connection.recv(len(CONTINUE)) == CONTINUE
        connection.sendall(BODY)
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("path", "status"), [("/nowhere", 404), ("/v1/models", 405), ("/v1/embeddings", 404)]
)
def test_a_path_without_a_route_is_refused_before_the_body(
    site: Site, path: str, status: int
) -> None:
    with waiting_client(site, path) as connection:
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 %d" % status)


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(start: Start) -> None:
    site = start(settings={"serve.max_body_bytes": 2000})
    with waiting_client(site, "/v1/chat/completions", size=3000) as connection:
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 413")


def test_an_older_client_gets_no_interim_answer(site: Site) -> None:
    with waiting_client(site, "/v1/chat/completions", version="1.0") as connection:
        connection.sendall(BODY)
        answer = read_all(connection)
    assert b"100 Continue" not in answer
    assert answer.startswith(b"HTTP/1.0 200")


def test_a_body_that_comes_with_the_head_is_read(site: Site) -> None:
    with waiting_client(site, "/v1/chat/completions") as connection:
        connection.sendall(BODY)
        answer = connection.recv(65536)
        while b"200 OK" not in answer:
            answer += connection.recv(65536)
    assert answer.startswith(CONTINUE)


def test_a_connection_serves_the_next_request(site: Site) -> None:
    with waiting_client(site, "/v1/chat/completions") as connection:
        connection.sendall(BODY)
        answer = connection.recv(65536)
        while b"usage" not in answer:
            answer += connection.recv(65536)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in connection.recv(65536)
