"""Starts what is measured: processes pinned to one core, stopped while another one is measured."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
ROOT = HERE.parent
LITELLM_VENV = ROOT / ".bench-venv"
# On the disk that the checkout is on: a store in memory would commit for nothing.
RUNS = ROOT / "runs"
_CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0, 1]
# The first and the last of the cores that this process may use.
LOAD_CORE = _CORES[0]
SERVER_CORE = _CORES[-1]
# Seconds.
START_WITHIN = 120.0


def pin(core: int) -> Callable[[], None] | None:
    """What a child does first: stay on one core (where the system can; macOS cannot)."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    return lambda: os.sched_setaffinity(0, {core})


class Server:
    """One process (and its children) with a port."""

    def __init__(
        self,
        command: list[str],
        *,
        core: int,
        log: Path,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        key: str = "none",
    ) -> None:
        """`port` None: the process chooses one, and prints it first."""
        self.log = log
        self.key = key
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=HERE,
                env=dict(os.environ) | dict(env or {}),
                stdout=subprocess.PIPE if port is None else errors,
                stderr=errors,
                preexec_fn=pin(core),
                start_new_session=True,
            )
        self.port = self._read_port() if port is None else port

    def _read_port(self) -> int:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.strip().isdigit():
            raise self._failed("did not print its port")
        return int(line)

    def _failed(self, what: str) -> RuntimeError:
        self.stop()
        return RuntimeError(
            f"{self.process.args!r} {what}; the end of its log:\n{self.log.read_text()[-800:]}"
        )

    def wait_for(self, path: str) -> None:
        """Until a GET answers 200."""
        until = time.monotonic() + START_WITHIN
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", headers={"Authorization": f"Bearer {self.key}"}
        )
        while time.monotonic() < until and self.process.poll() is None:
            with (
                contextlib.suppress(OSError, urllib.error.HTTPError),
                urllib.request.urlopen(request, timeout=2),
            ):
                return
            time.sleep(0.2)
        raise self._failed(f"does not answer at {path}")

    def freeze(self) -> None:
        os.killpg(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.thaw()
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def processor_seconds(pid: int) -> float:
    """Return the processor time, user and system, of all threads of a process so far."""
    if sys.platform == "linux":
        # The clock of another process, as `clock_getcpuclockid` returns it: in nanoseconds, where /proc counts ticks.
        return time.clock_gettime((~pid << 3) | 2)
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def free_port() -> int:
    """A port that was free a moment ago, for programs that cannot choose one themselves."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stub(folder: Path, settings: Mapping[str, Any]) -> Server:
    file = folder / "stub.json"
    file.write_text(json.dumps(settings))
    return Server([sys.executable, "stub.py", str(file)], core=LOAD_CORE, log=folder / "stub.log")


def passthrough(folder: Path, upstream: str) -> Server:
    return Server(
        [sys.executable, "passthrough.py", upstream],
        core=SERVER_CORE,
        log=folder / "passthrough.log",
    )


def gateway(folder: Path, model: Path, env: Mapping[str, str] | None = None) -> Server:
    """Our gateway's room, from the project's own entry point; its engine socket is the stub's."""
    port = free_port()
    key = secrets.token_urlsafe(24)
    config = folder / "config.json"
    config.write_text(
        json.dumps(
            {
                "home": str(folder / "home"),
                "model": {"path": str(model)},
                "serve": {"port": port, "api_key": key},
                "run": {"log_level": "warning"},
            }
        )
    )
    command = [sys.executable, "-m", "openclaw_rl", "worker", "gateway", "--config", str(config)]
    server = Server(
        command, core=SERVER_CORE, log=folder / "gateway.log", env=env, port=port, key=key
    )
    server.wait_for("/readyz")
    return server


def litellm(folder: Path, upstream: str) -> Server:
    """LiteLLM's proxy, one worker, logging off, no database, prices not fetched."""
    port = free_port()
    key = "sk-" + secrets.token_hex(24)
    model = {"model": "openai/openclaw", "api_base": upstream, "api_key": "none"}
    # JSON is YAML.
    config = folder / "litellm.json"
    config.write_text(
        json.dumps(
            {
                "model_list": [{"model_name": "openclaw", "litellm_params": model}],
                "general_settings": {"master_key": key},
                "litellm_settings": {"set_verbose": False, "num_retries": 0, "request_timeout": 60},
            }
        )
    )
    command = [
        str(LITELLM_VENV / "bin" / "litellm"),
        "--config",
        str(config),
        "--host",
        "127.0.0.1",
    ]
    env = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    env |= {"PATH": f"{LITELLM_VENV / 'bin'}:{os.environ.get('PATH', '')}"}
    server = Server(
        [*command, "--port", str(port), "--num_workers", "1"],
        core=SERVER_CORE,
        log=folder / "litellm.log",
        env=env,
        port=port,
        key=key,
    )
    server.wait_for("/health/liveliness")
    return server


def install_litellm() -> str:
    """Its version, installed into a venv of its own when it is not there yet."""
    python = LITELLM_VENV / "bin" / "python"
    if not (LITELLM_VENV / "bin" / "litellm").exists():
        print("Installing litellm[proxy] into .bench-venv (about 750 MB) ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(LITELLM_VENV)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "litellm[proxy]"], check=True)
    code = "from importlib.metadata import version; print(version('litellm'))"
    return subprocess.run(
        [str(python), "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


@contextlib.contextmanager
def running(servers: Mapping[str, Server]) -> Iterator[None]:
    """Stops them all at the end, whatever happened."""
    try:
        yield
    finally:
        for server in servers.values():
            server.stop()
