"""The system under faults: its processes, its heartbeats, and what it reports."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openclaw_rl.settings.load import Config
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.store.episodes import episodes
from openclaw_rl.store.episodes.records import Episode
from openclaw_rl.store.heartbeats import Heartbeat
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem

WORKERS = ("engine", "gateway", "collect", "judge", "train")
PROCESSES = (*WORKERS, "supervisor")
_POLL_SECONDS = 0.05


class FaultFinding(Exception):
    """The system did not do what a fault requires of it. The message becomes a violation."""


def read_pid(store: Store, worker: str) -> int | None:
    """Return the process id in the worker's last heartbeat, or None before its first."""
    with store.read() as conn:
        return next(
            (beat.pid for beat in heartbeats.read_heartbeats(conn) if beat.name == worker), None
        )


def has_ended(pid: int | None) -> bool:
    """Return whether the process does not exist, or is a zombie."""
    return _process_state(pid) in ("", "Z", "X")


def is_running(pid: int | None) -> bool:
    """Return whether the process exists, and is not stopped."""
    return not has_ended(pid) and _process_state(pid) not in ("T", "t")


def _process_state(pid: int | None) -> str:
    """Return the state letter of the process; empty without one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


async def wait_until(condition: Callable[[], Any], within: float) -> Any:
    """Return the first true value of `condition`, which runs in a thread, or the last value after `within` seconds."""
    end = time.monotonic() + within
    while not (found := await asyncio.to_thread(condition)) and time.monotonic() < end:
        await asyncio.sleep(_POLL_SECONDS)
    return found


class LiveSystem:
    """A system that may lose any of its processes, the supervisor included, which is started again by hand."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.system = SubprocessSystem(config)
        self.system.__enter__()
        self.store = Store.open(config.store_path, create=False)

    def close(self) -> None:
        self.store.close()
        self.system.__exit__(None, None, None)

    def pid_of(self, process: str) -> int | None:
        return self.system.pid if process == "supervisor" else read_pid(self.store, process)

    async def send_signal(self, process: str, number: signal.Signals) -> int | None:
        """Send a signal to a process if it runs; return its id."""
        pid = await asyncio.to_thread(self.pid_of, process)
        if pid is None or (number is signal.SIGKILL and not is_running(pid)):
            return None
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return None
        return pid

    async def kill(self, process: str) -> int | None:
        """End a process by SIGKILL. A supervisor is started again when its workers are gone, as a service manager does.

        Raises `FaultFinding` if a worker outlives its supervisor.
        """
        workers = {name: self.pid_of(name) for name in WORKERS} if process == "supervisor" else {}
        pid = await self.send_signal(process, signal.SIGKILL)
        if process == "supervisor":
            gone = await wait_until(lambda: all(has_ended(pid) for pid in workers.values()), 10)
            if not gone:
                raise FaultFinding(f"workers outlived the supervisor: {workers}")
            await asyncio.to_thread(self.restart)
        return pid

    def restart(self) -> None:
        """Start the system again on its home and its port."""
        self.system.__exit__(None, None, None)
        self.system = SubprocessSystem(self.config)
        self.system.__enter__()

    @property
    def is_down(self) -> bool:
        """Whether the system ended, supervisor and all."""
        return has_ended(self.system.pid)

    def read_heartbeats(self) -> dict[str, Heartbeat]:
        with self.store.read() as conn:
            return {beat.name: beat for beat in heartbeats.read_heartbeats(conn)}

    def missing_workers(self, since: float, killed: frozenset[int]) -> list[str]:
        """Return the processes without a heartbeat since then, by a process that runs and was not killed."""
        beats = self.read_heartbeats()
        now = time.time()

        def is_well(name: str) -> bool:
            beat = beats.get(name)
            if (
                beat is None
                or beat.pid in killed
                or not is_running(beat.pid)
                or not since < beat.at < now + 5
            ):
                return False
            return name == "supervisor" or beat.state == heartbeats.RUNNING

        return [name for name in PROCESSES if not is_well(name)]

    def read_readiness(self) -> dict[str, Any]:
        """Return what /readyz answers; empty if it does not answer."""
        request = urllib.request.Request(
            f"{self.system.base_url}/readyz",
            headers={"Authorization": f"Bearer {self.system.api_key}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                return dict(json.load(response))
        except urllib.error.HTTPError as error:
            return _parse_object(error.read())
        except (OSError, ValueError):
            return {}

    def read_episode(self, id: str) -> Episode | None:
        with self.store.read() as conn:
            return episodes.get_episode(conn, id)

    def head_version(self) -> int:
        with self.store.read() as conn:
            return policies.head(conn).version


def _parse_object(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
