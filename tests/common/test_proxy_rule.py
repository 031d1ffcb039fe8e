"""Loopback is never sent to a proxy; the rest goes where the environment says."""

from __future__ import annotations

import asyncio
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest
from tests.redirect_server import Received, serving

from openclaw_rl.common.http.blocking import open_url
from openclaw_rl.common.http.proxy_rule import is_on_this_machine, proxy_for, with_direct_hosts
from openclaw_rl.common.http.sessions import open_http_session

PROXY = "http://proxy.example:3128"
_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture
def proxy_variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("http_proxy", PROXY)
    monkeypatch.setenv("https_proxy", PROXY)
    return monkeypatch


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.8.9.1", "127.1"),
        *("2130706433", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::"),
    ],
)
def test_loopback_is_direct(host: str, proxy_variables: pytest.MonkeyPatch) -> None:
    assert is_on_this_machine(host)
    assert proxy_for(f"http://[{host}]:8/v1" if ":" in host else f"http://{host}:8/v1") is None


@pytest.mark.parametrize("host", ["example.org", "localhost.example", "8.8.8.8", "2001:db8::1"])
def test_other_hosts_have_the_proxy_of_their_scheme(
    host: str, proxy_variables: pytest.MonkeyPatch
) -> None:
    proxy_variables.setenv("https_proxy", "http://other.example:1")
    place = f"[{host}]" if ":" in host else host
    assert not is_on_this_machine(host)
    assert proxy_for(f"http://{place}/x") == PROXY
    assert proxy_for(f"https://{place}/x") == "http://other.example:1"
    proxy_variables.setenv("no_proxy", f"intern.example,{host}")
    assert proxy_for(f"https://{place}/x") is None


def test_an_address_of_this_machine_is_direct() -> None:
    """A gateway that binds to an address of the network is on this machine, too."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: the kernel chooses the address.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        assert is_on_this_machine(probe.getsockname()[0])


def test_other_programs_find_loopback_in_no_proxy() -> None:
    assert with_direct_hosts({"A": "b"}) == {"A": "b"}
    changed = with_direct_hosts({"HTTPS_PROXY": PROXY, "no_proxy": "a.example, localhost"})
    assert changed["no_proxy"] == changed["NO_PROXY"] == "a.example,localhost,127.0.0.1,::1"
    assert with_direct_hosts({"all_proxy": PROXY, "NO_PROXY": "*"})["no_proxy"] == "*"


@contextmanager
def proxy(target: str) -> Iterator[tuple[str, Received]]:
    """A proxy that answers each request for /move with a redirect to `target`, and any other with its address."""
    received: Received = []

    class Proxy(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            received.append((self.path, self.headers.get("Authorization"), body))
            self.send_response(307 if self.path.endswith("/move") else 200)
            self.send_header("Location", target)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"proxy")

        do_GET = do_POST = do_CONNECT = answer

    with serving(Proxy) as address:
        yield address, received


class _Server(BaseHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"server")


def read_blocking(url: str) -> bytes:
    with open_url(url, timeout=300) as answer:
        return answer.read()


def read_with_session(url: str) -> bytes:
    async def read() -> bytes:
        async with open_http_session() as session, session.get(url) as answer:
            return await answer.read()

    return asyncio.run(read())


@pytest.mark.parametrize("read", [read_blocking, read_with_session])
def test_each_redirect_is_sent_by_its_own_address(
    read: object, proxy_variables: pytest.MonkeyPatch
) -> None:
    assert callable(read)
    with serving(_Server) as server, proxy(server) as (address, received):
        proxy_variables.setenv("http_proxy", address)
        assert read("http://outside.invalid/x") == b"proxy"
        assert [path for path, _, _ in received] == ["http://outside.invalid/x"]
        assert read("http://outside.invalid/move") == b"server"
        assert read(server) == b"server"
        assert len(received) == 2
        proxy_variables.setenv("no_proxy", "outside.invalid")
        with pytest.raises(Exception, match=r"resol|Name|name|known"):
            read("http://outside.invalid/x")
        assert len(received) == 2


def test_a_redirect_can_be_refused(proxy_variables: pytest.MonkeyPatch) -> None:
    with serving(_Server) as server, proxy(server) as (address, _):
        request = urllib.request.Request(f"{address}/move", headers={"Authorization": "Bearer k"})
        with pytest.raises(urllib.error.HTTPError, match="307"):
            open_url(request, timeout=300, follow_redirects=False)
