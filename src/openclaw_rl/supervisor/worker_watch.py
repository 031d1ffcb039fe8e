"""Watches the workers of a supervisor: writes heartbeats for those that write none, and kills those that hang."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from openclaw_rl.common import disk_space
from openclaw_rl.common.worker_loop import repeat_while_disk_full, wait_or_stop
from openclaw_rl.errors import StoreError
from openclaw_rl.settings.load import Config
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.store.heartbeats import Heartbeat
from openclaw_rl.supervisor.engine_probe import EngineProbe
from openclaw_rl.supervisor.hang_verdict import Hang
from openclaw_rl.supervisor.heartbeat_monitor import CHECK_INTERVAL
from openclaw_rl.supervisor.process_usage import ProcessUsage, read_usage
from openclaw_rl.supervisor.worker_process import WorkerProcess
from openclaw_rl.supervisor.write_lock import CHECK_INTERVAL as LOCK_CHECK_INTERVAL
from openclaw_rl.supervisor.write_lock import WriteLockMonitor

log = logging.getLogger("openclaw_rl.run")
LOADING_SECONDS = 30.0
"""A worker reads a plug-in at the end of its start, so an earlier restart would only take longer."""


class WorkerWatch:
    """Checks each second whether a worker hangs, and twice a second who holds the write lock."""

    def __init__(
        self,
        config: Config,
        workers: Sequence[WorkerProcess],
        probes: Mapping[str, EngineProbe],
        health_note: Callable[[], str],
    ) -> None:
        """`probes`: by name, for the workers that run an engine; `health_note`: note of the supervisor's heartbeat."""
        self._config = config
        self._workers = workers
        self._probes = probes
        self._health_note = health_note

    async def run(self, stop: asyncio.Event) -> None:
        """Check the workers until `stop`."""
        await repeat_while_disk_full(lambda: self._check_heartbeats(stop), stop)

    async def _check_heartbeats(self, stop: asyncio.Event) -> None:
        store = await asyncio.to_thread(Store.open, self._config.store_path)
        was_skipped = False
        while not stop.is_set():
            try:
                await asyncio.to_thread(self._write_heartbeats, store)
                beats = await asyncio.to_thread(_read_heartbeats, store)
                # On a full disk the workers write no heartbeats.
                await asyncio.to_thread(disk_space.require_space, self._config.home_dir)
                usages = await asyncio.to_thread(self._read_usages)
                self._kill_hung(beats, usages)
                self._replace_mended(beats)
            except StoreError as error:
                # The disk may be full or busy for a moment, and the workers continue.
                log.log(
                    logging.DEBUG if was_skipped else logging.WARNING,
                    "the heartbeats are not checked: %s",
                    error,
                )
                was_skipped = True
            else:
                was_skipped = False
            await asyncio.sleep(CHECK_INTERVAL)

    def _write_heartbeats(self, store: Store) -> None:
        """Write the heartbeats of the supervisor, of engines, and of parked workers."""
        is_degraded = any(child.has_crashed() for child in self._workers)
        state = heartbeats.DEGRADED if is_degraded else heartbeats.RUNNING
        heartbeats.write_heartbeat(store, "supervisor", self._health_note(), state)
        for child in self._workers:
            probe = self._probes.get(child.name)
            if probe is not None and child.pid is not None:
                self._write_engine_heartbeat(store, child, probe)
            elif child.is_parked():
                heartbeats.write_heartbeat(
                    store, child.name, child.parked_note(), heartbeats.PARKED, child.last_pid
                )

    def _write_engine_heartbeat(
        self, store: Store, child: WorkerProcess, probe: EngineProbe
    ) -> None:
        monitor = child.monitor
        worker_state = probe.worker_state(child.started_at, monitor.silence_limit, monitor.quiet)
        if worker_state is not None:
            state, note = worker_state
            heartbeats.write_heartbeat(store, child.name, note, state, pid=child.pid)

    def _read_usages(self) -> dict[str, ProcessUsage | None]:
        """Return what the workers had of the machine whose work did not advance for some seconds."""
        return {
            child.name: read_usage(child.pid)
            for child in self._workers
            if child.pid is not None and child.monitor.needs_usage
        }

    def _kill_hung(
        self, beats: Mapping[str, Heartbeat], usages: Mapping[str, ProcessUsage | None]
    ) -> None:
        """Kill hung workers; their restart tasks start them again. Called only if heartbeats can be written at all."""
        for child in self._workers:
            if child.pid is None:
                continue
            usage = usages.get(child.name)
            probe = self._probes.get(child.name)
            if probe is None:
                hang = _check_beat(child, beats.get(child.name), usage)
            elif probe.is_foreign:
                continue
            else:
                # The supervisor writes the heartbeat of this worker.
                answered_at = probe.answer_since(child.started_at)
                hang = child.monitor.record_check(answered_at, time.monotonic(), usage=usage)
            if hang is not None:
                child.kill(hang)

    async def watch_write_lock(self, stop: asyncio.Event) -> None:
        """Kill a worker that keeps the write lock. No heartbeat can be written meanwhile, so none is missed."""
        monitor = WriteLockMonitor(self._config.store_path)
        while not stop.is_set():
            await wait_or_stop(stop, LOCK_CHECK_INTERVAL)
            stuck = await asyncio.to_thread(monitor.find_stuck_writer, time.monotonic())
            if stuck is None:
                continue
            stuck_workers = [child for child in self._workers if child.pid == stuck.pid]
            for child in stuck_workers:
                child.kill(stuck)

    def _replace_mended(self, beats: Mapping[str, heartbeats.Heartbeat]) -> None:
        """End the process of a worker that cannot work, once a file that it loads changes.

        It reports that it cannot, or it crashed before and has been loading for so long that it probably hangs in the
        file from before the change.
        """
        for child in self._workers:
            is_running = child.pid is not None and not child.is_replaced
            if is_running and child.has_changed_files():
                _replace_unable(child, _own_state(child, beats.get(child.name)))


def _replace(child: WorkerProcess, number: signal.Signals) -> None:
    """End the process of a worker by this signal, so that it is started again at once."""
    assert child.process is not None
    log.info("%s is started again, because a file that it loads has changed", child.name)
    child.is_replaced = True
    with contextlib.suppress(ProcessLookupError):
        child.process.send_signal(number)


def _replace_unable(child: WorkerProcess, state: str) -> None:
    """Replace a worker whose files have changed, if it loads for too long or cannot work."""
    if state == heartbeats.STARTING and _loads_too_long(child):
        # A signal that it handles would wait until it has loaded.
        _replace(child, signal.SIGKILL)
    elif state == heartbeats.PARKED:
        _replace(child, signal.SIGTERM)


def _own_state(child: WorkerProcess, beat: Heartbeat | None) -> str:
    """Return the state by the heartbeat of a worker's current process, which starts if it has sent none."""
    if beat is None or beat.pid != child.pid:
        return heartbeats.STARTING
    return beat.state


def _loads_too_long(child: WorkerProcess) -> bool:
    """Return whether a worker that crashed before has been loading for longer than it should."""
    seconds = time.monotonic() - child.started_at
    return child.crashes.count > 0 and seconds > LOADING_SECONDS


def _check_beat(
    child: WorkerProcess, beat: Heartbeat | None, usage: ProcessUsage | None
) -> Hang | None:
    """Record a worker's newest heartbeat, if it has one. Return how it hangs, or None."""
    now = time.monotonic()
    if beat is None:
        return child.monitor.record_check(None, now, is_own_beat=False, usage=usage)
    is_own_beat = beat.pid == child.pid
    return child.monitor.record_check(
        beat.advanced_at,
        now,
        is_own_beat=is_own_beat,
        starting=beat.state == heartbeats.STARTING,
        activity=beat.activity if is_own_beat else None,
        usage=usage,
    )


def _read_heartbeats(store: Store) -> dict[str, Heartbeat]:
    with store.read() as conn:
        return {beat.name: beat for beat in heartbeats.read_heartbeats(conn)}
