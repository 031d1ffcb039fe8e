"""The stream of changes: what it says, how many there may be, and what is left of those that were closed."""

from __future__ import annotations

import socket

import pytest
from tests.page.conftest import Browser, OpenPage, PageThread
from tests.serve.conftest import Start, wait_for

from openclaw_rl.page.live import MAX_STREAMS, PageChange, change_of_event
from openclaw_rl.store import events
from openclaw_rl.store.acts import ActActor, ActKind, record_act

MANY = 1000


def open_stream(browser: Browser) -> socket.socket:
    """Open a stream and wait for its first bytes."""
    host, _, port = browser.host.partition(":")
    connection = socket.create_connection((host, int(port)), timeout=240)
    head = f"GET /ui/changes HTTP/1.1\r\nHost: {browser.host}\r\nCookie: {browser.cookie}\r\n\r\n"
    connection.sendall(head.encode())
    received = b""
    while b": open" not in received:
        part = connection.recv(4096)
        assert part, received
        received += part
    return connection


@pytest.fixture
def page(browser: Browser, pages: list[PageThread]) -> PageThread:
    return pages[-1]


def test_a_verdict_is_said_to_open_pages(browser: Browser) -> None:
    connection = open_stream(browser)
    with browser.site.store.write() as conn:
        events.append(conn, "turn.judged", "a", {}, 1.0)
    received = b""
    while b"turns" not in received:
        part = connection.recv(4096)
        assert part
        received += part
    assert b"event: changed\ndata: " in received
    connection.close()


def test_an_act_of_the_owner_is_said_to_open_pages(browser: Browser) -> None:
    connection = open_stream(browser)
    with browser.site.store.write() as conn:
        record_act(conn, ActKind.PIN_LESSON, "a", actor=ActActor.COMMAND, outcome="", at=1.0)
    received = b""
    while b"lessons" not in received:
        part = connection.recv(4096)
        assert part
        received += part
    connection.close()


def test_newer_streams_end_the_oldest(browser: Browser, page: PageThread) -> None:
    connections = [open_stream(browser) for _ in range(MAX_STREAMS + 8)]
    assert page.page.live.open_streams == MAX_STREAMS
    # The rest of the first answer is its end.
    rest = b""
    while part := connections[0].recv(4096):
        rest += part
        if rest.endswith(b"0\r\n\r\n"):
            break
    assert rest.endswith(b"0\r\n\r\n")
    for connection in connections:
        connection.close()
    wait_for(lambda: page.page.live.open_streams, lambda count: count == 0)


def test_a_thousand_streams_that_are_left_open_leave_nothing(
    start: Start, open_page: OpenPage, pages: list[PageThread]
) -> None:
    browser = open_page(start())
    page = pages[-1].page
    for _ in range(MANY // 50):
        connections = [open_stream(browser) for _ in range(50)]
        assert page.live.open_streams <= MAX_STREAMS
        for connection in connections:
            connection.close()
    assert browser.get("/ui/now").status_code == 200
    wait_for(lambda: page.live.open_streams, lambda count: count == 0)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("turn.judged", PageChange.TURNS),
        ("lesson.made", PageChange.LESSONS),
        ("policy.live", PageChange.VERSIONS),
        ("consent.given", None),
    ],
)
def test_kinds_of_events(kind: str, change: PageChange | None) -> None:
    assert change_of_event(kind) is change
