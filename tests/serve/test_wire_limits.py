"""What strangers can do to a gateway before they have shown a key, with bounds so small that the tests are quick."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.serve.conftest import KEY, USER, Site, Start, wait_for

from openclaw_rl.serve import request_body
from openclaw_rl.serve.auth import WrongKeyDelays
from openclaw_rl.serve.connection_limits import client_address

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
BODY = json.dumps({"messages": [USER]}).encode()


def connect(site: Site, source: str = "127.0.0.1") -> socket.socket:
    host, port = site.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=240, source_address=(source, 0))


def head(*headers: str, key: str | None = KEY, path: str = CHAT, method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    lines += [f"Authorization: Bearer {key}"] if key else []
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def whole(key: str | None = KEY, path: str = CHAT) -> bytes:
    return head(f"Content-Length: {len(BODY)}", key=key, path=path) + BODY


def everything(connection: socket.socket) -> bytes:
    """What comes until the connection is closed; b"" also where it was reset."""
    try:
        return b"".join(iter(lambda: connection.recv(65536), b""))
    except ConnectionResetError:
        return b""


def sent_until_closed(connection: socket.socket, data: bytes, seconds: float = 300) -> bool:
    """Whether the gateway closes the connection while `data` is sent again and again."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            connection.sendall(data)
        except ConnectionError:
            return True
    return False


def status(connection: socket.socket, request: bytes) -> int:
    connection.sendall(request)
    return int(connection.recv(65536).split()[1])


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(65536) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    finally:
        connection.settimeout(5)


def bomb(mebibytes: int) -> bytes:
    """The beginning of a gzip body of zeros, with a thousandth of the bytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    first, *further = (
        packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2)
    )
    return first + further[0] * (
        mebibytes - 1
    )  # behind a full flush nothing refers to what was before


# ------------------------------------------------------------------------------------------ bodies


@pytest.mark.parametrize("key", [None, "wrong", KEY])
def test_a_bomb_is_inflated_behind_the_key_and_up_to_the_bound(
    start: Start, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    inflated: list[int] = []
    inflate_pieces = request_body._inflate_pieces

    def count_bytes(body: bytes, wbits: int) -> Iterator[bytes]:
        for piece in inflate_pieces(body, wbits):
            inflated.append(len(piece))
            yield piece

    monkeypatch.setattr(request_body, "_inflate_pieces", count_bytes)
    site, body = start(settings={"serve.max_body_bytes": 600_000}), bomb(500)
    with connect(site) as connection:
        headers = "Content-Encoding: gzip", "Connection: close", f"Content-Length: {len(body)}"
        connection.sendall(head(*headers, key=key) + body)
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 413" if key == KEY else b"HTTP/1.1 401")
    assert key != KEY or b"larger than 600000 bytes (serve.max_body_bytes)" in answer
    assert len(inflated) == (1 if key == KEY else 0)
    assert sum(inflated) <= request_body._PIECE_BYTES


@pytest.mark.parametrize("key", [None, KEY])
def test_a_body_without_an_end_is_discarded_for_a_bounded_time(
    start: Start, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openclaw_rl.serve.request_body._DISCARD_SECONDS", 0.2)
    site = start(settings={"serve.max_body_bytes": 2**20})
    with connect(site) as connection:
        connection.sendall(head("Transfer-Encoding: chunked", key=key))
        assert sent_until_closed(connection, b"10000\r\n" + bytes(2**16) + b"\r\n")


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


def gzipped(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


ENCODED = {
    "gzip": ("gzip", gzipped(BODY), 200),
    "gzip with two members": ("GZIP", gzipped(BODY[:9]) + gzipped(BODY[9:]), 200),
    "deflate": ("deflate", zlib.compress(BODY), 200),
    "deflate without a header": ("deflate", raw_deflate(BODY), 200),
    "more than it needs": ("gzip", gzipped(BODY) + b"more", 400),
    "a million members": ("gzip", gzipped(b"") * 50_000, 400),
    "half of it": ("deflate", zlib.compress(BODY)[:-6], 400),
    "nothing": ("gzip", b"", 400),
    "brotli": ("br", BODY, 415),
}


@pytest.mark.parametrize("name", ENCODED)
def test_compressed_bodies(site: Site, name: str) -> None:
    encoding, body, expected = ENCODED[name]
    headers = {
        "Authorization": f"Bearer {KEY}",
        "Content-Encoding": encoding,
        "Content-Length": str(len(body)),
    }
    answer = site.http.post(CHAT, body, headers)
    assert answer.status_code == expected, answer.text
    assert expected == 200 or answer.json()["error"]["message"]


def test_a_large_compressed_body_arrives_whole(start: Start) -> None:
    site = start(settings={"engine.max_context": 2**20})
    long = {
        "role": "system",
        "content": "".join(chr(97 + n % 23 * n % 7) for n in range(3 * 2**20)),
    }
    body = gzipped(json.dumps({"messages": [USER], "metadata": long}).encode())
    headers = {"Authorization": f"Bearer {KEY}", "Content-Encoding": "gzip"}
    assert site.http.post(CHAT, body, headers).status_code == 200


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("key", [KEY, "wrong"])
def test_a_chunk_longer_than_it_says_is_answered(site: Site, path: str, key: str) -> None:
    with connect(site) as connection:
        connection.sendall(head("Transfer-Encoding: chunked", path=path, key=key))
        time.sleep(0.05)  # the handler runs when the body arrives
        connection.sendall(b"5\r\n" + BODY + b"\r\n0\r\n\r\n")
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 400" if key == KEY else b"HTTP/1.1 401")
    assert answer.count(b"HTTP/1.") == 1
    assert (b'"request_id"' in answer) == (path == MESSAGES)


# -------------------------------------------------------------------------------------------- time


def test_a_silent_connection_is_closed(start: Start) -> None:
    site = start(settings={"serve.header_timeout": 0.2, "serve.idle_timeout": 60})
    with connect(site) as silent, connect(site) as slow:
        since = time.monotonic()
        while not is_closed(slow):
            slow.send(b"G")  # each byte alone would be in time
            time.sleep(0.05)
            assert time.monotonic() - since < 240
        assert everything(silent) == b""


def test_the_second_head_has_the_time_of_the_first(start: Start) -> None:
    """And the pause between two requests has a time of its own."""
    site = start(settings={"serve.header_timeout": 0.5, "serve.idle_timeout": 60})
    with connect(site) as connection:
        assert status(connection, whole()) == 200
        time.sleep(0.7)
        assert status(connection, whole()) == 200
        connection.sendall(head()[:20])
        assert everything(connection) == b""


def test_an_idle_connection_is_closed(start: Start) -> None:
    site = start(settings={"serve.idle_timeout": 0.5})
    with connect(site) as connection:
        assert status(connection, whole()) == 200
        assert everything(connection) == b""


def test_a_body_has_its_time(start: Start) -> None:
    site = start(settings={"serve.body_timeout": 0.2})
    with connect(site) as connection:
        connection.sendall(head(f"Content-Length: {len(BODY)}") + BODY[:5])
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"within 0.2 seconds (serve.body_timeout)" in answer


def test_a_reply_takes_longer_than_all_of_them(start: Start) -> None:
    times = {"serve.header_timeout": 0.4, "serve.idle_timeout": 0.4, "serve.body_timeout": 0.4}
    site = start(settings=times, delay=0.05)
    site.script.say("One two three four five six.")
    with connect(site) as connection:
        assert status(connection, whole()) == 200


def test_a_head_without_an_end_is_closed(site: Site) -> None:
    with connect(site) as connection:
        connection.sendall(head()[:-2])
        assert sent_until_closed(connection, b"X-A: " + b"a" * 60_000 + b"\r\n")


# ------------------------------------------------------------------------------------- connections


@pytest.mark.parametrize("begun", [b"", b"POST /v1/chat/completions HTTP/1.1\r\n"])
@pytest.mark.parametrize("bound", ["serve.max_connections", "serve.max_connections_per_address"])
def test_silent_sockets_give_way(start: Start, begun: bytes, bound: str) -> None:
    site = start(settings={bound: 5})
    with ExitStack() as stack:
        silent = [stack.enter_context(connect(site)) for _ in range(20)]
        for connection in silent:
            if not is_closed(connection):
                connection.sendall(begun)
        assert site.http.post(CHAT, BODY).status_code == 200
        wait_for(
            lambda: [is_closed(c) for c in silent],
            lambda closed: closed == [True] * 16 + [False] * 4,
        )


def test_a_connection_with_a_key_is_kept_for_silent_ones(start: Start) -> None:
    site = start(settings={"serve.max_connections": 5})
    with ExitStack() as stack:
        known = stack.enter_context(connect(site))
        assert status(known, whole()) == 200
        for _ in range(20):
            stack.enter_context(connect(site))
        assert status(known, whole()) == 200


def test_where_all_are_in_use_a_new_one_is_refused(start: Start) -> None:
    site = start(settings={"serve.max_connections_per_address": 3}, delay=0.05)
    site.script.say("one two three four")
    with ExitStack() as stack:
        busy = [stack.enter_context(connect(site)) for _ in range(3)]
        for connection in busy:
            connection.sendall(whole())
        wait_for(lambda: site.engine.running[0], lambda n: n == 3)
        health = stack.enter_context(connect(site))
        assert status(health, head(path="/healthz", method="GET", key=None)) == 200, "the reserve"
        refused = stack.enter_context(connect(site))
        refused.sendall(head("Connection: close", path="/v1/models", method="GET"))
        answer = everything(refused)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"Retry-After: 1" in answer
        other = stack.enter_context(connect(site, "127.0.0.2"))
        assert status(other, head(path="/healthz", method="GET")) == 200, (
            "another address has its own number"
        )
        assert all(connection.recv(65536).startswith(b"HTTP/1.1 200") for connection in busy)
        assert site.http.get("/healthz").status_code == 200, "now they are idle"


@pytest.mark.parametrize(
    ("peer", "counted"),
    [
        (("10.1.2.3", 5), "10.1.2.3"),
        (("::ffff:10.1.2.3", 5, 0, 0), "10.1.2.3"),
        (("2001:db8:1:2:3:4:5:6", 5, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::/64"),
        (None, ""),
    ],
)
def test_addresses_are_counted_by_client(peer: tuple[str, int] | None, counted: str) -> None:
    assert client_address(peer) == counted


def test_the_limit_of_open_files_is_raised_as_far_as_the_system_allows() -> None:
    code = (
        "import resource; from openclaw_rl.serve.connection_limits import allow_open_files as allow;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 600));"
        "print(allow(300), resource.getrlimit(resource.RLIMIT_NOFILE)[0], allow(1000))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout.split() == ["300", "428", "472"]


# -------------------------------------------------------------------------------------------- keys


def is_answered(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


def test_wrong_keys_wait_and_right_ones_do_not(site: Site) -> None:
    with ExitStack() as stack:
        guesses = [stack.enter_context(connect(site)) for _ in range(20)]
        for number, connection in enumerate(guesses):
            connection.sendall(whole(f"guess-{number}"))
        wait_for(lambda: sum(map(is_answered, guesses)), lambda n: n >= 5)
        for source, key, expected in (("127.0.0.1", KEY, 200), ("127.0.0.2", "guess", 401)):
            with connect(site, source) as other:
                assert status(other, whole(key)) == expected
        assert not all(map(is_answered, guesses)), (
            "the same address with the right key, and another, did not wait"
        )
        assert all(connection.recv(65536).startswith(b"HTTP/1.1 401") for connection in guesses)


def test_the_delay_grows_to_a_bound_and_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("openclaw_rl.serve.auth.time.monotonic", lambda: now)
    delays = WrongKeyDelays()
    assert [delays.next_delay("a") for _ in range(10)] == [0, 0, 0, 0, 0, 0.25, 0.5, 1, 2, 2]
    assert delays.next_delay("b") == 0
    now += 61
    assert delays.next_delay("a") == 0


def test_a_missing_key_is_no_guess(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    # A delay would be a failure of the server: TypeError, status 500.
    monkeypatch.setattr(WrongKeyDelays, "next_delay", None)
    for _ in range(20):
        assert site.http.post(CHAT, BODY, {}).status_code == 401


# ---------------------------------------------------------------------------- work that is stopped


def test_work_stops_when_the_client_leaves(start: Start) -> None:
    site = start(settings={"engine.max_context": 2**22}, context_length=2**22)
    site.script.say("Hello.")
    text = "".join(chr(97 + n * n % 25) for n in range(30_000))
    body = json.dumps(
        {"messages": [{"role": "user", "content": f"{n}{text}"} for n in range(300)]}
    ).encode()
    with connect(site) as connection:
        since = time.process_time()
        connection.sendall(head(f"Content-Length: {len(body)}") + body)
        wait_for(
            time.process_time, lambda now: now > since + 1.5, seconds=240
        )  # decoding and hashing take a third
    wait_for(cpu_share, lambda share: share < 0.1)
    assert site.count() == 0


def cpu_share() -> float:
    """The processor time of this process during 0.1 s, as a share of them."""
    since, before = time.monotonic(), time.process_time()
    time.sleep(0.1)
    return (time.process_time() - before) / (time.monotonic() - since)
