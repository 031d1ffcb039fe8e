"""Watches the workers of a supervisor: writes heartbeats for those that write none, and kills those that hang."""

from __future__ import annotations

import asyncio
import contextlib
import logging
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
        found = probe.worker_state(child.started_at, monitor.silence_limit, monitor.quiet)
        if found is not None:
            state, note = found
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
            pid = child.pid
            probe = self._probes.get(child.name)
            if pid is None or (probe is not None and probe.is_foreign):
                continue
            beat = beats.get(child.name)
            advanced_at = None if beat is None else beat.advanced_at
            own = beat is not None and beat.pid == pid
            # The supervisor writes the heartbeat of this worker.
            if probe is not None:
                advanced_at = probe.answer_since(child.started_at)
                own = True
            hang = child.monitor.record_check(
                advanced_at,
                time.monotonic(),
                own=own,
                starting=probe is None and beat is not None and beat.state == heartbeats.STARTING,
                activity=beat.activity if beat is not None and own and probe is None else None,
                usage=usages.get(child.name),
            )
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
            for child in self._workers:
                if child.pid == stuck.pid:
                    child.kill(stuck)

    def _replace_mended(self, beats: Mapping[str, heartbeats.Heartbeat]) -> None:
        """End the process of a worker that cannot work, once a file that it loads changes.

        It reports that it cannot, or it crashed before and has been loading for so long that it probably hangs in the
        file from before the change.
        """
        for child in self._workers:
            if (
                child.process is None
                or child.pid is None
                or child.is_replaced
                or not child.has_changed_files()
            ):
                continue
            beat = beats.get(child.name)
            state = (
                beat.state if beat is not None and beat.pid == child.pid else heartbeats.STARTING
            )
            has_loaded_for = time.monotonic() - child.started_at
            is_loading = (
                state == heartbeats.STARTING
                and child.crashes.count > 0
                and has_loaded_for > LOADING_SECONDS
            )
            if state != heartbeats.PARKED and not is_loading:
                continue
            log.info("%s is started again, because a file that it loads has changed", child.name)
            child.is_replaced = True
            with contextlib.suppress(ProcessLookupError):
                # A signal that it handles would wait until it has loaded.
                if is_loading:
                    child.process.kill()
                else:
                    child.process.terminate()


def _read_heartbeats(store: Store) -> dict[str, Heartbeat]:
    with store.read() as conn:
        return {beat.name: beat for beat in heartbeats.read_heartbeats(conn)}
