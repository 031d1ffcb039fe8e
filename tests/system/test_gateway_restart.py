"""While the gateway restarts, nobody is refused: the supervisor holds its socket."""

from __future__ import annotations

import http.client
import os
import signal
import time
from pathlib import Path

import pytest

from openclaw_rl.common.gateway_address import running_address
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

pytestmark = pytest.mark.system
WITHIN = 600.0


def test_a_restart_of_the_gateway_refuses_nobody(tmp_path: Path) -> None:
    with SubprocessSystem(scratch_config(tmp_path / "home"), command="serve") as system:
        home = system.config.home_dir
        first = running_address(home)
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        until = time.monotonic() + WITHIN
        waited = 0
        while (address := running_address(home)) is None or address.pid == first.pid:
            assert time.monotonic() < until
            # A connection that was accepted by the old process ends; none is refused.
            assert ask_health(system.base_url) in (200, None)
            waited += 1
        assert waited
        assert ask_health(system.base_url) == 200


def ask_health(url: str) -> int | None:
    """Return the status; None if the connection ended without an answer. Raises `ConnectionRefusedError`."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=WITHIN)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status
    except ConnectionRefusedError:
        raise
    except (ConnectionError, http.client.HTTPException):
        return None
    finally:
        connection.close()
