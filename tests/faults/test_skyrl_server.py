"""The Tinker server of `make test-tinker` and `make faults-tinker` never outlives the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.skyrl_server import SkyrlServer
from tests.process_ends import find_running

ROOT = Path(__file__).parent.parent.parent
API = """
import http.server, os, subprocess, sys, time
from pathlib import Path

folder = Path(__file__).parent
subprocess.Popen(["uv", "run", "-m", "skyrl.tinker.engine"])
while not (folder / "engine").exists():
    time.sleep(0.01)
pids = [os.getpid(), os.getppid(), *map(int, (folder / "engine").read_text().split())]
(folder / "engine").unlink()
(folder / "processes").write_text(" ".join(map(str, pids)))


class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()


print("the server answers", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Healthy).serve_forever()
"""
ENGINE = """
import os, signal, time
from pathlib import Path

signal.signal(signal.SIGTERM, signal.SIG_IGN)
fresh = Path(__file__).with_name("fresh")
fresh.write_text(f"{os.getpid()} {os.getppid()}")
fresh.rename(fresh.with_name("engine"))
time.sleep(60)
"""
STARTS = """
import sys, time
from pathlib import Path
from benchmarks.skyrl_server import SkyrlServer

with SkyrlServer(Path(sys.argv[1]), Path("model")):
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `skyrl` whose server starts its engine as SkyRL's does. Returns the file with their four processes."""
    folder = tmp_path / "packages" / "skyrl" / "tinker"
    folder.mkdir(parents=True)
    for name, text in {"../__init__": "", "__init__": "", "api": API, "engine": ENGINE}.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'packages'}:{ROOT}:{ROOT / 'src'}")
    return folder / "processes"


def read_processes(file: Path) -> list[int]:
    pids = [int(pid) for pid in file.read_text().split()]
    assert len(set(pids)) == 4
    return pids


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_server_and_engine_end_with_the_process_that_started_them(
    tmp_path: Path, stand_in: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-c", STARTS, str(tmp_path / "server")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        assert tests.stdout.readline() == "ready\n", (
            tmp_path / "server" / "server.log"
        ).read_text()
        tests.send_signal(number)
    pids = read_processes(stand_in)
    left = find_running(pids)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def test_a_killed_server_and_its_engine_end_at_once_and_can_be_started_again(
    tmp_path: Path, stand_in: Path
) -> None:
    server = SkyrlServer(tmp_path / "server", Path("model"))
    with server:
        first = read_processes(stand_in)
        server.kill()
        assert find_running(first) == []
        with server:
            second = read_processes(stand_in)
            assert set(find_running(second, within=0)) == set(second)
    assert find_running(second) == []
    assert server.log.read_text().count("the server answers") == 2


def test_a_server_that_does_not_start_is_reported_with_its_log(
    tmp_path: Path, stand_in: Path
) -> None:
    stand_in.with_name("api.py").write_text("raise SystemExit('no such model')")
    with (
        pytest.raises(AssertionError, match="no such model"),
        SkyrlServer(tmp_path / "server", Path("model")),
    ):
        pass
