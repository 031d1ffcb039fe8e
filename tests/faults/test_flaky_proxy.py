"""The proxy of `make faults-tinker` forwards, refuses, and holds requests as it is told."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from benchmarks.flaky_proxy import FlakyProxy


class EchoHandler(BaseHTTPRequestHandler):
    """Answers with the path and the body of the request."""

    protocol_version = "HTTP/1.1"
    answered = 0

    def do_POST(self) -> None:
        type(self).answered += 1
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        answer = json.dumps({"path": self.path, "body": body}).encode()
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *given: object) -> None:
        """Print nothing."""


@pytest.fixture
def target() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), EchoHandler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


@pytest.fixture
def proxy(target: ThreadingHTTPServer) -> Iterator[FlakyProxy]:
    with FlakyProxy(f"http://127.0.0.1:{target.server_address[1]}") as started:
        yield started


def post(proxy: FlakyProxy, timeout: float = 30.0) -> tuple[int, dict[str, str]]:
    connection = http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=timeout)
    try:
        connection.request("POST", "/a/b?c=d", body="words")
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_every_other_request_is_refused_and_the_rest_is_forwarded(proxy: FlakyProxy) -> None:
    assert post(proxy) == (201, {"path": "/a/b?c=d", "body": "words"})
    proxy.begin_trouble(429)
    assert sorted(post(proxy)[0] for _ in range(4)) == [201, 201, 429, 429]
    assert proxy.refused == 2
    proxy.end_trouble()
    assert [post(proxy)[0] for _ in range(2)] == [201, 201]


def test_a_request_that_is_held_gets_no_answer(proxy: FlakyProxy) -> None:
    proxy.begin_trouble("hang", every=1)
    with pytest.raises(TimeoutError):
        post(proxy, timeout=0.5)
    proxy.end_trouble()
    assert post(proxy)[0] == 201


def test_a_lost_answer_is_that_of_a_request_that_was_done(proxy: FlakyProxy) -> None:
    proxy.begin_trouble("lose", every=2, path="/b")
    before = EchoHandler.answered
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        post(proxy)
    assert post(proxy)[0] == 201
    assert EchoHandler.answered == before + 2
    proxy.begin_trouble("lose", every=1, path="/other")
    assert post(proxy)[0] == 201


def test_a_server_that_is_down_breaks_the_connection(
    proxy: FlakyProxy, target: ThreadingHTTPServer
) -> None:
    target.shutdown()
    target.server_close()
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        post(proxy)
