"""The loop of a worker: iterations in a thread, a heartbeat each second, and waits that `stop` ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable

HEARTBEAT_SECONDS = 1.0  # seconds between two heartbeats


class HeartbeatTimer:
    """Calls `write` in a thread, at most once each `HEARTBEAT_SECONDS`."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write, self._written_at = write, float("-inf")

    async def write_if_due(self) -> None:
        if time.monotonic() - self._written_at >= HEARTBEAT_SECONDS:
            await asyncio.to_thread(self._write)
            self._written_at = time.monotonic()


async def run_worker_loop(
    run_once: Callable[[], object],
    write_heartbeat: Callable[[], None],
    stop: asyncio.Event,
    *,
    poll: float,
    beat_while_busy: bool = True,
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """Call `run_once` in a thread until `stop` is set; wait `poll` seconds when it returns a false value.

    `beat_while_busy`: write heartbeats during a call too. Without them, the supervisor restarts a worker that hangs.
    `on_stop`: called in a thread as soon as `stop` is set, also during a call, because a long one may be killed.
    """
    heartbeat = HeartbeatTimer(write_heartbeat)
    stopping = asyncio.create_task(_call_on_stop(stop, on_stop))
    try:
        await _run_until_stop(run_once, heartbeat, stop, poll, beat_while_busy)
    finally:
        stopping.cancel()


async def _call_on_stop(stop: asyncio.Event, on_stop: Callable[[], None]) -> None:
    await stop.wait()
    await asyncio.to_thread(on_stop)


async def _run_until_stop(
    run_once: Callable[[], object], heartbeat: HeartbeatTimer, stop: asyncio.Event, poll: float, beat_while_busy: bool
) -> None:
    while not stop.is_set():
        await heartbeat.write_if_due()
        work = asyncio.create_task(asyncio.to_thread(run_once))
        while not (await asyncio.wait({work}, timeout=HEARTBEAT_SECONDS))[0]:
            if beat_while_busy:
                await heartbeat.write_if_due()
        if not work.result():
            await wait_or_stop(stop, poll)


async def wait_or_stop(stop: asyncio.Event, seconds: float) -> None:
    """Wait `seconds`, or until `stop` is set."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
