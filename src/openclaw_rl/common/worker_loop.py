"""The loop of a worker: iterations in a thread, a heartbeat each second, and waits that `stop` ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from openclaw_rl.common import disk_space
from openclaw_rl.common.progress import record_progress
from openclaw_rl.errors import DiskFull, StoreError

log = logging.getLogger(__name__)
# Seconds between two heartbeats.
HEARTBEAT_SECONDS = 1.0
OWN_LOAD = 3.0
"""Processes of one system that compute at a time, at most. A load average above the cores and these is of others."""

WriteHeartbeat = Callable[[str | None], None]
"""Writes a heartbeat. Its argument is why the worker pauses, or None while it works."""


class HeartbeatTimer:
    """Calls `write` in a thread, at most once each `HEARTBEAT_SECONDS`. A heartbeat that fails ends nothing."""

    def __init__(self, write: WriteHeartbeat) -> None:
        self._write = write
        self._written_at = float("-inf")
        self._has_failed = False

    async def write_if_due(self, problem: str | None = None) -> None:
        if time.monotonic() - self._written_at < HEARTBEAT_SECONDS:
            return
        self._written_at = time.monotonic()
        try:
            await asyncio.to_thread(self._write, problem)
        except StoreError as error:
            log.log(
                logging.DEBUG if self._has_failed else logging.WARNING,
                "no heartbeat was written: %s",
                error,
            )
            self._has_failed = True
        else:
            self._has_failed = False


class DiskPause:
    """The pause of a worker while a disk is full: tries again each second, and says why it waits."""

    def __init__(self) -> None:
        # Why the worker pauses.
        self.problem: str | None = None

    async def begin(self, error: DiskFull, stop: asyncio.Event, heartbeat: HeartbeatTimer) -> None:
        """Wait until the next attempt is due."""
        if self.problem is None:
            log.warning("paused: %s", error)
        self.problem = f"paused: {error}"
        await heartbeat.write_if_due(self.problem)
        await wait_or_stop(stop, disk_space.RETRY_SECONDS)

    def end(self) -> None:
        """Record that an attempt succeeded."""
        if self.problem is not None:
            log.info("there is space on the disk again; the work continues")
            self.problem = None


class WorkThreads:
    """The threads in which a worker of low priority works.

    Beside many other programs, a thread of low priority gets next to nothing: a hundredth of a processor beside ten
    that compute. Then the work runs in a thread that has kept the priority with which this was created.
    """

    def __init__(self) -> None:
        self._fair = ThreadPoolExecutor(1, thread_name_prefix="fair")
        self._fair_id = self._fair.submit(threading.get_native_id).result()

    @property
    def fair_ids(self) -> frozenset[int]:
        """Native ids of the threads that keep their priority."""
        return frozenset({self._fair_id})

    def pick_executor(self) -> Executor | None:
        """Return the executor for the next piece of work; None: the default one, of low priority."""
        return self._fair if is_machine_busy() else None

    def close(self) -> None:
        """End the thread."""
        self._fair.shutdown()


def is_machine_busy() -> bool:
    """Return whether other programs compute so much that a process of low priority hardly gets a processor."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return os.getloadavg()[0] > cores + OWN_LOAD


async def run_worker_loop(
    run_once: Callable[[], object],
    write_heartbeat: WriteHeartbeat,
    stop: asyncio.Event,
    *,
    poll: float,
    on_stop: Callable[[], None] = lambda: None,
    pick_executor: Callable[[], Executor | None] = lambda: None,
) -> None:
    """Call `run_once` in a thread until `stop` is set; wait `poll` seconds when it returns a false value.

    The begin and the end of a call are progress (`common.progress`); what else is, the call records. During a call
    heartbeats are written, too: they say whether it advances, from which the supervisor sees whether it hangs.
    On a full disk the call is repeated each second.
    `on_stop`: called in a thread as soon as `stop` is set, also during a call, because a long one may be killed.
    `pick_executor`: returns where the next call runs.
    """
    heartbeat = HeartbeatTimer(write_heartbeat)
    stopping = asyncio.create_task(_call_on_stop(stop, on_stop))
    try:
        await _run_until_stop(run_once, heartbeat, stop, poll, pick_executor)
    finally:
        stopping.cancel()


async def _call_on_stop(stop: asyncio.Event, on_stop: Callable[[], None]) -> None:
    await stop.wait()
    await asyncio.to_thread(on_stop)


async def _run_until_stop(
    run_once: Callable[[], object],
    heartbeat: HeartbeatTimer,
    stop: asyncio.Event,
    poll: float,
    pick_executor: Callable[[], Executor | None],
) -> None:
    loop = asyncio.get_running_loop()
    pause = DiskPause()
    while not stop.is_set():
        await heartbeat.write_if_due(pause.problem)
        record_progress()
        work = loop.run_in_executor(pick_executor(), run_once)
        while not (await asyncio.wait({work}, timeout=HEARTBEAT_SECONDS))[0]:
            await heartbeat.write_if_due()
        record_progress()
        try:
            has_more = work.result()
        except Exception as error:
            # A full disk shows in errors of many kinds; all others are raised.
            full = disk_space.to_disk_full(error)
            if full is None:
                raise
            await pause.begin(full, stop, heartbeat)
            continue
        pause.end()
        if not has_more:
            await wait_or_stop(stop, poll)


async def repeat_while_disk_full(run: Callable[[], Awaitable[None]], stop: asyncio.Event) -> None:
    """Run a worker until it ends. On a full disk, for example when its store is opened, it is run again each second."""
    pause = DiskPause()
    # The store cannot be opened.
    silent = HeartbeatTimer(lambda _: None)
    while not stop.is_set():
        try:
            return await run()
        except Exception as error:
            # A full disk shows in errors of many kinds; all others are raised.
            full = disk_space.to_disk_full(error)
            if full is None:
                raise
            await pause.begin(full, stop, silent)


async def wait_or_stop(stop: asyncio.Event, seconds: float) -> None:
    """Wait `seconds`, or until `stop` is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def lower_priority(nice: int, but: Collection[int] = ()) -> None:
    """Give the engine and the gateway priority over the threads of this process, as a person waits for the reply.

    `nice`: nice value, from 0 to 19. A lower one than the process has is left as it is. `but`: native ids of threads
    that keep their priority, on Linux; elsewhere all threads of a process have the same.
    """
    if nice <= os.nice(0):
        return
    if sys.platform != "linux":
        os.nice(nice - os.nice(0))
        return
    threads = {int(task.name) for task in Path("/proc/self/task").iterdir()}
    for thread in threads - set(but):
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, thread, nice)
            # No interruption at each wake-up.
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
