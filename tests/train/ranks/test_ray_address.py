"""The address of a Ray head: what nobody answers at is one line, in seconds, and not after a quarter of an hour."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openclaw_rl.common.log_codes import LogCode, code_of_error
from openclaw_rl.common.sockets import free_port
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.load import from_flat
from openclaw_rl.train.ranks import ray_launcher
from openclaw_rl.train.ranks.ray_address import connection_problem, find_address, host_and_port
from openclaw_rl.train.ranks.ray_launcher import RayRanks

Start = Callable[[str, Callable[..., object]], RayRanks]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start ranks with a double of Ray that only has `init`."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def start_ranks(address: str, init: Callable[..., object]) -> RayRanks:
        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))  # type: ignore[misc]
        launch = {"train.launch.by": "ray", "train.launch.ray": address}
        return RayRanks(from_flat({"home": str(tmp_path), "train.ranks": 2} | launch))

    return start_ranks


def never_asked(**_: Any) -> None:
    raise AssertionError("Ray is not asked for a head that is away")


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("10.0.0.1:6379", ("10.0.0.1", 6379)),
        ("ray://head:10001", ("head", 10001)),
        ("[::1]:6379", ("::1", 6379)),
        *(
            (other, None)
            for other in ("auto", "local", "nohost", "http://head:8265", "head:99999", ":6379", "")
        ),
    ],
)
def test_host_and_port_are_parsed(address: str, found: tuple[str, int] | None) -> None:
    assert host_and_port(address) == found


def test_auto_reads_the_variable_as_ray_does() -> None:
    assert find_address("auto", {"RAY_ADDRESS": "head:6379"}) == "head:6379"
    assert find_address("auto", {"RAY_ADDRESS": ""}) == find_address("auto", {}) == "auto"
    assert find_address("other:6379", {"RAY_ADDRESS": "head:6379"}) == "other:6379"


def test_a_head_that_answers_is_accepted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        assert connection_problem(f"127.0.0.1:{head.getsockname()[1]}") is None
    assert connection_problem("auto") is None


@pytest.mark.parametrize("is_variable", [False, True])
def test_a_head_that_has_ended_is_reported_in_one_line(
    start: Start, monkeypatch: pytest.MonkeyPatch, *, is_variable: bool
) -> None:
    address = f"127.0.0.1:{free_port()}"
    if is_variable:
        monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(
        ConfigError, match=f"no head answers at {address} .* Start a head there"
    ) as caught:
        start("auto" if is_variable else address, never_asked)
    assert_diagnosed(caught.value)


def test_a_silent_cluster_is_reported_in_one_line(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray remembers the head that was started last on this machine, and asks it for a quarter of an hour."""
    monkeypatch.setattr(ray_launcher, "_CONNECT_SECONDS", 0.2)
    ended = threading.Event()
    answers = list[bool]()
    with pytest.raises(
        ConfigError, match=r"train\.launch\.ray auto: no head answers within 0\.2 s\. Start"
    ) as caught:
        start("auto", lambda **_: answers.append(ended.wait(600)))
    assert answers == [], "the head was not waited for"
    ended.set()
    assert_diagnosed(caught.value)


@pytest.mark.parametrize("error", [ConnectionError("no instance"), TimeoutError("no instance")])
def test_an_error_of_ray_keeps_its_message(start: Start, error: Exception) -> None:
    def fail(**_: Any) -> None:
        raise error

    with pytest.raises(
        ConfigError, match=r"train\.launch\.ray auto: no instance\. Start a head there"
    ) as caught:
        start("auto", fail)
    assert_diagnosed(caught.value)


def assert_diagnosed(error: ConfigError) -> None:
    """One line, which `openclaw-rl doctor --troubles` recognises."""
    assert "\n" not in str(error)
    assert code_of_error(error) is LogCode.RAY_UNUSABLE
