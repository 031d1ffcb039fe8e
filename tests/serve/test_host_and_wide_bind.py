"""Which names of the gateway are accepted, and what a bind that other machines reach demands."""

from __future__ import annotations

import socket

import pytest
from tests.serve.conftest import KEY, Site, Start, wait_for

from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.load import from_flat
from openclaw_rl.supervisor.subprocess_system import is_ready

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
WIDE = {"serve.host": "0.0.0.0", "serve.api_key": "a-key-of-20-letters-"}


def answer(
    site: Site, host: str | None, path: str = "/healthz", version: str = "1.1"
) -> tuple[int, bytes]:
    address, port = site.url.removeprefix("http://").split(":")
    lines = [
        f"GET {path} HTTP/{version}",
        "Connection: close",
        *([f"Host: {host}"] if host is not None else []),
    ]
    with socket.create_connection((address, int(port)), timeout=240) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        found = b"".join(iter(lambda: connection.recv(65536), b""))
    return int(found.split()[1]), found


LOOPBACK = ["localhost", "LOCALHOST.:80", "127.0.0.1:8000", "[::1]", "[0:0:0:0:0:0:0:1]:8000"]
FOREIGN = [
    "attacker.example",
    "attacker.example:8000",
    "localhost.attacker.example",
    "10.0.0.5",
    "",
    "[",
    "a:b:c",
]


@pytest.mark.parametrize("host", LOOPBACK)
def test_names_of_this_machine_are_accepted(site: Site, host: str) -> None:
    assert answer(site, host)[0] == 200


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/readyz", CHAT, MESSAGES, "/nowhere"])
def test_other_names_are_refused(site: Site, host: str, path: str) -> None:
    """A web page whose name was made to resolve to this machine sends its own name."""
    status, found = answer(site, host, path)
    assert status == 403
    assert b"serve.allowed_hosts" in found
    assert (b'"request_id"' in found) == (path == MESSAGES)


@pytest.mark.parametrize(("name", "status"), [("attacker.example", 403), ("localhost:8000", 200)])
def test_the_name_in_an_absolute_address_counts_as_well(site: Site, name: str, status: int) -> None:
    assert answer(site, "localhost", f"http://{name}/healthz")[0] == status


def test_names_can_be_allowed(start: Start) -> None:
    site = start(settings={"serve.allowed_hosts": ["Gateway.example:8000", "host.docker.internal"]})
    assert answer(site, "gateway.example")[0] == answer(site, "host.docker.internal:8000")[0] == 200
    assert answer(site, "localhost")[0] == 200
    assert answer(site, "example")[0] == 403
    assert answer(start(settings={"serve.allowed_hosts": ["*"]}), "example")[0] == 200


def test_an_old_client_sends_no_name(site: Site) -> None:
    assert answer(site, None, version="1.0")[0] == 200


def test_a_wide_bind_accepts_every_name_unless_some_are_listed(start: Start) -> None:
    assert answer(start(settings=WIDE), "attacker.example")[0] == 200, (
        "every path but the health check needs the key"
    )
    site = start(settings=WIDE | {"serve.allowed_hosts": ["gateway.example"]})
    assert answer(site, "gateway.example")[0] == answer(site, "localhost")[0] == 200
    assert answer(site, "attacker.example")[0] == 403


def test_a_wide_bind_needs_the_key_for_readiness_and_metrics(start: Start) -> None:
    site = start(settings=WIDE)
    for path in ("/readyz", "/metrics"):
        assert site.http.get(path, {}).status_code == 401
        assert site.http.get(path, {"Authorization": "Bearer wrong"}).status_code == 401
        wait_for(lambda: site.http.get(path).status_code, lambda s: s == 200)  # noqa: B023 - called in this iteration
    for path in ("/healthz", "/health"):
        assert site.http.get(path, {}).status_code == 200


def test_readiness_is_asked_with_the_key(start: Start) -> None:
    wide, loopback = start(settings=WIDE), start()
    wait_for(lambda: is_ready(loopback.url), bool)
    wait_for(lambda: is_ready(wide.url, KEY), bool)
    for key in (None, "wrong"):
        with pytest.raises(OpenClawError, match=r"refuses the key.*OPENCLAW_API_KEY"):
            is_ready(wide.url, key)
    wide.close()
    assert not is_ready(wide.url, KEY)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("127.0.0.2", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("my.host", False),
    ],
)
def test_which_binds_only_this_machine_reaches(host: str, loopback: bool) -> None:
    config = from_flat({"serve.host": host, "serve.api_key": "a-key-of-20-letters-"})
    assert config.serve.is_loopback == loopback
