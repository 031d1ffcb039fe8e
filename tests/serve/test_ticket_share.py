"""A program with tickets locks nobody out: its connections, requests and bodies have a share of their own."""

from __future__ import annotations

import json
import logging
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from tests.serve.conftest import KEY, USER, Site, Start, wait_for
from tests.serve.test_foreign_callers import ticket_headers
from tests.serve.test_wire_limits import BODY, connect, everything, head, status, whole

from openclaw_rl.serve import body_budget, http_connection
from openclaw_rl.serve.body_budget import SMALL_BODY_BYTES, BodyBudget

CONNECTIONS = 500
BODIES = 60
BODY_BYTES = 31 * 2**20


def ticket(site: Site, id: str = "e") -> str:
    return ticket_headers(site, id, KEY)["Authorization"].removeprefix("Bearer ")


def budget(site: Site) -> BodyBudget:
    """The budget of the running gateway."""
    return site.runner._bodies


@contextmanager
def open_connections(site: Site, requests: list[bytes]) -> Iterator[list[socket.socket]]:
    """Open a connection for each request, and send it."""
    with ExitStack() as stack:
        opened = []
        for request in requests:
            connection = stack.enter_context(connect(site))
            connection.sendall(request)
            opened.append(connection)
        yield opened


@pytest.mark.parametrize("is_in_use", [False, True])
def test_tickets_on_all_connections_leave_the_owner_a_place(start: Start, is_in_use: bool) -> None:
    """With the shipped limits, from the owner's own address."""
    site = start(delay=3600.0 if is_in_use else 0.0)
    key = ticket(site)
    asked = whole(key) if is_in_use else head(key=key, path="/v1/models", method="GET")
    with open_connections(site, [asked] * CONNECTIONS):
        for path, sent in (("/healthz", None), ("/v1/models", KEY)):
            with connect(site) as connection:
                request = head("Connection: close", key=sent, path=path, method="GET")
                assert status(connection, request) == 200, path


def test_a_ticket_gives_way_to_an_owner_where_all_connections_are_in_use(start: Start) -> None:
    settings = {"serve.max_connections": 4, "serve.max_connections_per_address": 4}
    site = start(delay=3600.0, settings=settings)
    key = ticket(site)
    with open_connections(site, [whole(key)] * 2 + [whole(KEY)] * 2) as (_, displaced, *_owners):
        wait_for(lambda: len(site.engine.calls), lambda count: count == 4)
        del displaced
        with connect(site) as health:
            assert status(health, head(key=None, path="/healthz", method="GET")) == 200
        with connect(site) as refused:
            answer = status(refused, head(key=key, path="/v1/models", method="GET"))
            assert answer == 429, "a ticket displaces nobody"
        with connect(site) as owner:
            assert status(owner, head(path="/v1/models", method="GET")) == 200
            with connect(site) as second:
                assert status(second, head(path="/v1/models", method="GET")) == 200
            with connect(site) as third:
                assert status(third, head(path="/v1/models", method="GET")) in (200, 503)


def test_a_ticket_has_a_limit_of_requests_at_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openclaw_rl.serve.episodes.ticket_load.MAX_REQUESTS", 2)
    site = start(delay=3600.0)
    key = ticket(site)
    with open_connections(site, [whole(key)] * 2):
        wait_for(lambda: len(site.engine.calls), lambda count: count == 2)
        answer = site.http.post("/v1/chat/completions", BODY, {"Authorization": f"Bearer {key}"})
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
        with open_connections(site, [whole(ticket(site, "other"))]):
            wait_for(lambda: len(site.engine.calls), lambda count: count == 3)
    episode = site.http.get("/v1/episodes/e").json()
    assert episode["failed_request"] is None, "a limit is no failure of the gateway"


def held_body(key: str) -> bytes:
    return head(f"Content-Length: {BODY_BYTES}", key=key)


@pytest.mark.parametrize("whose", ["a ticket", "the owner"])
def test_held_bodies_are_bounded_together(
    start: Start, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    site = start(settings={"engine.max_context": 2**20})
    key = KEY if whose == "the owner" else ticket(site)
    with open_connections(site, [held_body(key)] * BODIES) as connections:
        for connection in connections:
            connection.setblocking(False)
            part = b'{"a":"' + b" " * 2**20
            for _ in range(31):
                try:
                    connection.send(part)
                except BlockingIOError:
                    break
        bodies = budget(site)
        wait_for(lambda: bodies.used, lambda used: used >= BODY_BYTES)
        assert bodies.used <= bodies.total
        answer = site.http.post("/v1/chat/completions", {"messages": [USER]})
        assert answer.status_code == 200
        large = json.dumps({"messages": [USER], "metadata": {"a": "b" * 2**19}}).encode()
        answer = site.http.post("/v1/chat/completions", large)
        assert answer.status_code == 200
        assert bodies.used <= bodies.total
    wait_for(lambda: bodies.used, lambda used: used == 0)


def test_a_body_without_progress_is_idle(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "STALLED_SECONDS", 0.0)
    site = start(settings={"serve.max_connections": 1})
    begun = head("Content-Length: 1000") + b"{"
    with connect(site) as stalled:
        stalled.sendall(begun)
        wait_for(lambda: len(budget(site)._leases), lambda count: count == 1)
        with connect(site) as owner:
            assert status(owner, head(path="/v1/models", method="GET")) == 200
        assert everything(stalled) == b""


def test_a_stalled_body_gives_its_bytes_back(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_budget, "STALLED_SECONDS", 0.0)
    site = start(settings={"serve.max_body_bytes": 2**20})
    begun = head("Content-Length: 1000000") + b"{"
    with open_connections(site, [begun, begun]) as connections:
        wait_for(lambda: budget(site).used, lambda used: used >= 2_000_000)
        body = json.dumps({"messages": [USER], "metadata": {"a": "b" * 900_000}}).encode()
        assert site.http.post("/v1/chat/completions", body).status_code == 200
        answers = [connection.recv(65536) for connection in connections[:1]]
    assert answers[0].startswith(b"HTTP/1.1 408")
    assert b"body_stalled" in answers[0]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/feedback"),
        ("PUT", "/v1/episodes/e"),
        ("POST", "/v1/episodes/e/outcome"),
    ],
)
def test_feedback_and_episodes_have_small_bodies(site: Site, method: str, path: str) -> None:
    body = json.dumps({"id": "x", "comment": "a" * SMALL_BODY_BYTES}).encode()
    answer = site.http.send(method, path, body, {"Authorization": f"Bearer {KEY}"})
    assert answer.status_code == 413
    assert str(SMALL_BODY_BYTES) in answer.json()["error"]["message"]


@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize("count", [50, 505])
def test_clients_that_leave_in_their_bodies_are_no_error(
    site: Site, caplog: pytest.LogCaptureFixture, count: int, abort: bool
) -> None:
    """Also where there are more of them than connections that one address may have."""
    key = ticket(site)
    with open_connections(site, [head("Content-Length: 1000", key=key) + b"{"] * count) as opened:
        wait_for(lambda: len(budget(site)._leases), lambda leases: leases >= 50)
        for connection in opened:
            if abort:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_for(lambda: len(budget(site)._leases), lambda leases: leases == 0)
    assert site.http.get("/v1/episodes/e").json()["failed_request"] is None
    lines = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
    assert [line for line in lines if "max_connections" not in line] == []
