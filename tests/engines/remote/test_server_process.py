"""Keeping somebody else's program: its lines, its end, and that nothing of it outlives us, however we end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openclaw_rl.common.sockets import clear_socket
from openclaw_rl.errors import EngineError
from openclaw_rl.settings.load import Config, from_flat, to_environment

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

# A server with a child of its own, as vLLM has: both write their pids, and the child does not care for SIGTERM.
SERVER = """
import json, pathlib, socket, subprocess, sys
stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(99)"
child = subprocess.Popen([sys.executable, "-c", stubborn])
pathlib.Path(sys.argv[2]).write_text(json.dumps([__import__("os").getpid(), child.pid]))
print("INFO all is well", flush=True)
print("ERROR this is loud", flush=True)
with socket.socket(socket.AF_UNIX) as s:
    s.bind(sys.argv[1])
    s.listen()
    while True:
        c, _ = s.accept()
        c.recv(4096)
        c.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
        c.close()
"""
ROOM = """
import json, sys
from openclaw_rl.settings.load import foreign_environment, inherited_config
from openclaw_rl.engines.remote.http_client import HttpClient
from openclaw_rl.engines.remote.server_process import run_server
from openclaw_rl.common.logging_metrics import setup_logging
config = inherited_config()
setup_logging("engine", config.logs_dir, "info")
http = HttpClient("http://server", socket=config.engine_socket)
run_server(config, "server", json.loads(sys.argv[1]), foreign_environment({}), http)
"""


class Room:
    """The engine's room in a process of its own."""

    def __init__(self, config: Config, command: list[str], pids: Path) -> None:
        self.config, self._pids = config, pids
        self.popen = subprocess.Popen(
            [sys.executable, "-c", ROOM, json.dumps(command)],
            env=to_environment(config),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def pids(self) -> list[int]:
        return list(json.loads(self._pids.read_text())) if self._pids.exists() else []

    def log(self, name: str) -> str:
        file = self.config.logs_dir / f"{name}.log"
        return file.read_text() if file.exists() else ""


@pytest.fixture
def room(short_home: Callable[[], Path], tmp_path: Path) -> Iterator[Callable[..., Room]]:
    started: list[Room] = []

    def start(code: str = SERVER) -> Room:
        config = from_flat({"home": str(short_home())})
        command = [sys.executable, "-c", code, str(config.engine_socket), str(tmp_path / "pids")]
        started.append(Room(config, command, tmp_path / "pids"))
        return started[-1]

    yield start
    for each in started:
        each.popen.kill()
        each.popen.communicate(timeout=20)


def until(condition: Callable[[], object], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def test_it_is_relayed_and_ends_with_the_room(room: Callable[..., Room]) -> None:
    kept = room()
    assert until(lambda: "answers at" in kept.log("engine"))
    assert "all is well" in kept.log("server")
    assert "this is loud" in kept.log("server")
    assert "this is loud" in kept.log("engine")
    assert "all is well" not in kept.log("engine"), "its chatter is in its own log"
    with pytest.raises(EngineError, match="another engine answers there"):
        clear_socket(kept.config.engine_socket)
    pids = kept.pids
    kept.popen.send_signal(signal.SIGTERM)
    assert kept.popen.wait(20) == 0
    assert not any(map(alive, pids))
    assert not kept.config.engine_socket.exists()


def test_nothing_of_it_outlives_a_killed_room(room: Callable[..., Room]) -> None:
    kept = room()
    assert until(lambda: "answers at" in kept.log("engine"))
    pids = kept.pids
    assert len(pids) == 2
    assert all(map(alive, pids))
    kept.popen.kill()
    assert until(lambda: not any(map(alive, pids))), "it outlived its room"


def test_a_killed_guard_takes_everything_with_it(room: Callable[..., Room]) -> None:
    kept = room()
    assert until(lambda: "answers at" in kept.log("engine"))
    pids = kept.pids
    guard = int(Path(f"/proc/{pids[0]}/stat").read_text().split(") ")[1].split()[1])
    os.kill(guard, signal.SIGKILL)
    assert kept.popen.wait(20) != 0
    assert until(lambda: not any(map(alive, pids)))


def test_a_program_that_dies_is_a_fault_with_its_last_words(room: Callable[..., Room]) -> None:
    kept = room()
    assert until(lambda: "answers at" in kept.log("engine"))
    server, child = kept.pids
    os.kill(server, signal.SIGKILL)
    out, _ = kept.popen.communicate(timeout=20)
    assert kept.popen.returncode == 1
    assert "server ended (signal SIGKILL). Its last output:" in out
    assert "this is loud" in out
    assert until(lambda: not alive(child)), "its child was left behind"


def test_what_a_killed_program_left_behind_is_cleared(short_home: Callable[[], Path]) -> None:
    import socket

    path = short_home() / "engine.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert path.exists()
    clear_socket(path)
    assert not path.exists()
    with pytest.raises(EngineError, match="Choose a shorter"):
        clear_socket(path.parent / ("x" * 120))
