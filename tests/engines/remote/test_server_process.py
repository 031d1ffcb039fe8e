"""A server program that the engine worker runs: its output, its end, and no process left behind."""

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
ENGINE_PROGRAM = """
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


class EngineProcess:
    """The engine worker in a process of its own."""

    def __init__(self, config: Config, command: list[str], pids: Path) -> None:
        self.config, self._pids = config, pids
        self.popen = subprocess.Popen(
            [sys.executable, "-c", ENGINE_PROGRAM, json.dumps(command)],
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
def start_engine(
    short_home: Callable[[], Path], tmp_path: Path
) -> Iterator[Callable[..., EngineProcess]]:
    started: list[EngineProcess] = []

    def start(code: str = SERVER) -> EngineProcess:
        config = from_flat({"home": str(short_home())})
        command = [sys.executable, "-c", code, str(config.engine_socket), str(tmp_path / "pids")]
        started.append(EngineProcess(config, command, tmp_path / "pids"))
        return started[-1]

    yield start
    for each in started:
        each.popen.kill()
        each.popen.communicate(timeout=240)


def wait_until(condition: Callable[[], object], seconds: float = 240) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def test_the_server_is_relayed_and_ends_with_the_engine(
    start_engine: Callable[..., EngineProcess],
) -> None:
    engine = start_engine()
    assert wait_until(lambda: "answers at" in engine.log("engine"))
    assert "all is well" in engine.log("server")
    assert "this is loud" in engine.log("server")
    assert "this is loud" in engine.log("engine")
    assert "all is well" not in engine.log("engine"), (
        "ordinary output stays in the log of the server"
    )
    with pytest.raises(EngineError, match="another engine answers there"):
        clear_socket(engine.config.engine_socket)
    pids = engine.pids
    engine.popen.send_signal(signal.SIGTERM)
    assert engine.popen.wait(240) == 0
    assert not any(map(is_alive, pids))
    assert not engine.config.engine_socket.exists()


def test_no_process_outlives_a_killed_engine(start_engine: Callable[..., EngineProcess]) -> None:
    engine = start_engine()
    assert wait_until(lambda: "answers at" in engine.log("engine"))
    pids = engine.pids
    assert len(pids) == 2
    assert all(map(is_alive, pids))
    engine.popen.kill()
    assert wait_until(lambda: not any(map(is_alive, pids))), "the server outlived its engine"


def test_a_killed_guard_ends_every_process(start_engine: Callable[..., EngineProcess]) -> None:
    engine = start_engine()
    assert wait_until(lambda: "answers at" in engine.log("engine"))
    pids = engine.pids
    guard = int(Path(f"/proc/{pids[0]}/stat").read_text().split(") ")[1].split()[1])
    os.kill(guard, signal.SIGKILL)
    assert engine.popen.wait(240) != 0
    assert wait_until(lambda: not any(map(is_alive, pids)))


def test_a_server_that_dies_is_an_error_with_its_last_output(
    start_engine: Callable[..., EngineProcess],
) -> None:
    engine = start_engine()
    assert wait_until(lambda: "answers at" in engine.log("engine"))
    server, child = engine.pids
    os.kill(server, signal.SIGKILL)
    out, _ = engine.popen.communicate(timeout=240)
    assert engine.popen.returncode == 1
    assert "server ended (signal SIGKILL). Its last output:" in out
    assert "this is loud" in out
    assert wait_until(lambda: not is_alive(child)), "its child was left behind"


def test_a_socket_left_by_a_killed_server_is_removed(short_home: Callable[[], Path]) -> None:
    import socket

    path = short_home() / "engine.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert path.exists()
    clear_socket(path)
    assert not path.exists()
    with pytest.raises(EngineError, match="Choose a shorter"):
        clear_socket(path.parent / ("x" * 120))
