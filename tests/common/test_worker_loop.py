"""The loop of a worker: its heartbeats while it works, hangs or waits for room on a disk, and how it is stopped."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from openclaw_rl.common import disk_space, progress, worker_loop
from openclaw_rl.common.worker_loop import WriteHeartbeat, repeat_while_disk_full, run_worker_loop
from openclaw_rl.errors import DiskFull, StoreError
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_loop, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(disk_space, "RETRY_SECONDS", 0.05)


def run_until(
    done: Callable[[], bool], work: Callable[[], object], beat: WriteHeartbeat = lambda _: None
) -> None:
    async def main() -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(run_worker_loop(work, beat, stop, poll=0.01))
        end = time.monotonic() + 240
        while not done() and not task.done():
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        stop.set()
        await asyncio.wait_for(task, 240)

    asyncio.run(main())


def test_a_busy_worker_receives_a_stop() -> None:
    """The work may take longer than the process is given, so what is noted about it is withdrawn at once."""
    begun, told = threading.Event(), threading.Event()

    def work() -> bool:
        begun.set()
        assert told.wait(240), "nobody said during the work that it is to end"
        return False

    async def main() -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(
            run_worker_loop(work, lambda _: None, stop, poll=0.01, on_stop=told.set)
        )
        await asyncio.to_thread(begun.wait, 10)
        stop.set()
        await asyncio.wait_for(task, 240)

    asyncio.run(main())
    assert told.is_set()


@pytest.mark.parametrize("advances", [True, False])
def test_heartbeats_during_a_long_call_say_whether_it_advances(
    tmp_path: Path, advances: bool
) -> None:
    """Each heartbeat during the call has what it does; only progress moves the time of the last advance."""
    activity = progress.Activity(kind=progress.WorkKind.TRAIN, number=2, total=3, expected=30.0)
    seen: list[heartbeats.Heartbeat] = []

    with Store.open(tmp_path / "store.db") as store:
        write = heartbeats.heartbeat_writer(store, "train", lambda: "training")

        def write_and_read(problem: str | None) -> None:
            write(problem)
            with store.read() as conn:
                (beat,) = heartbeats.read_heartbeats(conn)
            if beat.activity is not None:
                seen.append(beat)

        def work() -> bool:
            end = time.monotonic() + 240
            with progress.working_on(activity):
                while len(seen) < 5 and time.monotonic() < end:
                    if advances:
                        progress.record_progress()
                    time.sleep(0.01)
            return False

        run_until(lambda: len(seen) >= 5, work, write_and_read)
    first = seen[0].advanced_at
    assert {beat.activity for beat in seen[:5]} == {activity}
    assert (seen[4].advanced_at > first) == advances
    assert seen[4].at > first


@pytest.mark.parametrize(
    "raised",
    [
        FULL,
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        DiskFull("the disk is full"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
    ids=["ENOSPC", "EDQUOT", "store", "library"],
)
def test_a_full_disk_is_a_pause_that_is_reported(raised: Exception) -> None:
    calls: list[int] = []
    problems: list[str | None] = []

    def work() -> bool:
        calls.append(len(calls))
        if len(calls) <= 3:
            raise raised
        return False

    run_until(lambda: len(calls) > 5, work, problems.append)
    assert any(
        problem is not None and problem.startswith("paused: the disk is full")
        for problem in problems
    )
    assert problems[-1] is None


def test_an_error_behind_another_is_found_and_other_errors_pass() -> None:
    error = StoreError("the export failed")
    error.__cause__ = FULL
    assert isinstance(disk_space.to_disk_full(error), DiskFull)
    assert disk_space.to_disk_full(OSError(errno.EACCES, "Permission denied")) is None
    with pytest.raises(ValueError, match="a bug"):
        run_until(lambda: False, lambda: (_ for _ in ()).throw(ValueError("a bug")))


def test_a_heartbeat_that_fails_does_not_end_the_worker() -> None:
    calls: list[int] = []

    def refuse(_: str | None) -> None:
        raise StoreError("locked")

    def work() -> bool:
        calls.append(1)
        return False

    run_until(lambda: len(calls) > 5, work, refuse)


def test_a_worker_whose_start_meets_a_full_disk_is_started_again_in_its_process() -> None:
    starts: list[int] = []

    async def run() -> None:
        starts.append(1)
        if len(starts) < 3:
            raise DiskFull("the disk is full")

    asyncio.run(repeat_while_disk_full(run, asyncio.Event()))
    assert len(starts) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a priority for each thread")
def test_on_a_busy_machine_work_runs_in_a_thread_that_keeps_its_priority() -> None:
    """In a process of its own, because a priority cannot be raised again."""
    program = """
import asyncio, os, threading
from openclaw_rl.common import worker_loop
threads = worker_loop.WorkThreads()
worker_loop.lower_priority(10, but=threads.fair_ids)
seen = []
async def main():
    stop = asyncio.Event()
    def work():
        seen.append((worker_loop.is_machine_busy(), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
        worker_loop.is_machine_busy = lambda: len(seen) % 2 == 1
        if len(seen) == 4:
            loop.call_soon_threadsafe(stop.set)
    loop = asyncio.get_running_loop()
    worker_loop.is_machine_busy = lambda: False
    await worker_loop.run_worker_loop(
        work, lambda problem: None, stop, poll=0.001, pick_executor=threads.pick_executor
    )
asyncio.run(main())
threads.close()
print([nice for _, nice in seen])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert done.stdout.strip() == f"[10, {own}, 10, {own}]"


def test_a_load_of_other_programs_makes_a_machine_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1}, raising=False)
    for load, busy in ((0.0, False), (5.0, False), (22.0, True)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert worker_loop.is_machine_busy() == busy
