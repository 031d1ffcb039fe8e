"""Workers that hang while they hold the write lock of the store: nobody can write, not even a heartbeat."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from openclaw_rl.settings.load import from_flat
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.home_folder import prepare_home
from openclaw_rl.supervisor.supervisor import Supervisor
from openclaw_rl.supervisor.write_lock import FROZEN_LIMIT, HELD_LIMIT, WriteLockMonitor

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux names the holders of file locks"
)
WITHIN = 600.0  # seconds
HOLDER = """
import signal, sqlite3, sys, time
conn = sqlite3.connect(sys.argv[1], isolation_level=None)
for _ in range(int(sys.argv[2])):
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("CREATE TABLE IF NOT EXISTS t (a)")
    conn.execute("INSERT INTO t VALUES (1)")
    conn.execute("COMMIT")
conn.execute("BEGIN IMMEDIATE")
print("holds", flush=True)
time.sleep(600)
"""


@contextmanager
def lock_holder(store: Path, commits: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that holds the write lock after so many commits."""
    command = [sys.executable, "-c", HOLDER, str(store), str(commits)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"holds\n"
        try:
            yield process
        finally:
            process.kill()


def first_found(monitor: WriteLockMonitor, seconds: float) -> tuple[int, float] | None:
    """Check twice a second for so long, without waiting. Return the process that is found, and when."""
    for step in range(int(2 * seconds) + 1):
        if (stuck := monitor.find_stuck_writer(100 + step / 2)) is not None:
            return stuck.pid, step / 2
    return None


@pytest.fixture
def store_path(tmp_path: Path) -> Iterator[Path]:
    with Store.open(tmp_path / "store.db"):
        yield tmp_path / "store.db"


def test_a_frozen_holder_is_found(store_path: Path) -> None:
    with lock_holder(store_path, commits=3) as process:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert first_found(WriteLockMonitor(store_path), HELD_LIMIT) == (process.pid, FROZEN_LIMIT)


def test_a_holder_that_waits_for_something_else_is_found_later(store_path: Path) -> None:
    with lock_holder(store_path) as process:
        assert first_found(WriteLockMonitor(store_path), HELD_LIMIT + 5) == (
            process.pid,
            HELD_LIMIT,
        )


def test_a_holder_that_commits_is_busy_and_not_stuck(store_path: Path) -> None:
    monitor = WriteLockMonitor(store_path)
    for step in range(4):
        with lock_holder(store_path, commits=1):
            assert monitor.find_stuck_writer(100 + step * HELD_LIMIT) is None


def test_readers_and_locks_of_other_files_are_no_holders(store_path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with Store.open(other), lock_holder(other), sqlite3.connect(store_path) as conn:
        conn.execute("BEGIN")
        conn.execute("SELECT * FROM meta").fetchall()
        assert first_found(WriteLockMonitor(store_path), 2 * HELD_LIMIT) is None


def test_a_worker_that_is_frozen_in_a_transaction_is_killed_and_the_others_write_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this, no process could write, and no heartbeat would be missed, for ever."""
    home, program = tmp_path / "home", tmp_path / "program"
    config = from_flat({"home": str(home), "run.log_level": "error"})
    program.write_text(
        f"""#!{sys.executable}
import os, signal, sqlite3, sys, time
flag = {str(tmp_path / "flag")!r}
if not os.path.exists(flag):
    conn = sqlite3.connect({str(config.store_path)!r}, isolation_level=None, timeout=600)
    conn.execute("BEGIN IMMEDIATE")
    open(flag, "w").close()
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(600)
"""
    )
    program.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(program))
    prepare_home(config)
    store = Store.open(config.store_path)

    async def main() -> None:
        stop = asyncio.Event()
        supervisor = Supervisor(config, ["collect"], echo=False)
        running = asyncio.create_task(supervisor.run(stop))
        end = time.monotonic() + WITHIN
        while "while it held the write lock of the store" not in supervisor.health_note():
            assert time.monotonic() < end
            await asyncio.sleep(0.1)
        assert "collect crashed 1x (stopped by a signal for " in supervisor.health_note()
        await asyncio.to_thread(heartbeats.write_heartbeat, store, "another")
        stop.set()
        await asyncio.wait_for(running, WITHIN)

    asyncio.run(main())
    store.close()
