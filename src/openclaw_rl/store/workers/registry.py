"""The workers that run on a home. A claim of a worker ends with the worker, or with its entry.

A worker renews its entry. An entry that is not renewed for `LIFETIME` expires, so that a process that was suspended
loses its claims; one whose process has ended counts for nothing at once. Times are seconds since the boot of the
machine: a jump of the wall clock ends no worker. A home is on one machine, so workers of an earlier boot have ended.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, bindparam, delete, select
from sqlalchemy.dialects.sqlite import insert

from openclaw_rl.common import steady_clock
from openclaw_rl.common.process_guard import process_exists
from openclaw_rl.errors import StoreError, WorkerNameTaken
from openclaw_rl.store.db import Store
from openclaw_rl.store.rows import from_row, to_row
from openclaw_rl.store.workers.tables import workers

log = logging.getLogger(__name__)
LIFETIME = 60.0
"""Seconds after which an entry that is not renewed expires."""
_RENEWALS = 4
"""Renewals within a lifetime: some may fail while the store is busy."""
_PID_SPACE = Path("/proc/self/ns/pid")
_put = insert(workers)
_upsert = _put.on_conflict_do_update(
    index_elements=["id"], set_={"expires_at": _put.excluded.expires_at}
)
_remove = delete(workers).where(workers.c.id == bindparam("which"))
_list = select(workers).order_by(workers.c.started_at, workers.c.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A process of a stage that works, or worked, on the home."""

    id: str
    stage: str  # such as "judge"
    name: str  # of its heartbeat; unique among the workers that run
    boot: str  # of the machine (`steady_clock.boot_id`)
    pid_space: int  # within which `pid` means something; 0: it is not known
    pid: int
    started_at: float  # seconds since the epoch
    expires_at: float  # seconds since the boot

    def is_alive(self, now: float) -> bool:
        """Return whether its claims count. `now`: seconds since the boot of this machine."""
        if self.boot != steady_clock.boot_id() or self.expires_at <= now:
            return False
        # Another container's process cannot be asked for; its entry expires.
        return self.pid_space != _own_pid_space() or process_exists(self.pid)


def _own_pid_space() -> int:
    """Return the number of the kernel's namespace of process ids; 0 where there are no such namespaces."""
    try:
        return _PID_SPACE.stat().st_ino
    except OSError:
        return 0


def live_workers(conn: Connection, now: float | None = None) -> dict[str, Worker]:
    """Return the workers whose claims count, by id, oldest first. `now`: seconds since the boot; None: now."""
    seconds = steady_clock.boot_seconds() if now is None else now
    found = (from_row(Worker, row) for row in conn.execute(_list))
    return {worker.id: worker for worker in found if worker.is_alive(seconds)}


def name_of(stage: str, number: int) -> str:
    """Return the name of the worker with this number (from 1) of a stage: `judge`, `judge-2`, `judge-3`."""
    return stage if number == 1 else f"{stage}-{number}"


def stage_of(name: str) -> str:
    """Return the stage of the worker with this name."""
    stage, _, number = name.rpartition("-")
    return stage if stage and number.isdecimal() else name


class WorkerEntry:
    """The entry of this process, renewed by a thread until it is closed."""

    def __init__(
        self, store: Store, name: str, *, clock: Callable[[], float] = steady_clock.boot_seconds
    ) -> None:
        """Enter a worker. `clock`: seconds since the boot.

        Raises `WorkerNameTaken` if a worker of this name runs on the home; nothing is changed then.
        """
        self._store = store
        self._clock = clock
        self._worker = Worker(
            id=uuid.uuid4().hex,
            stage=stage_of(name),
            name=name,
            boot=steady_clock.boot_id(),
            pid_space=_own_pid_space(),
            pid=os.getpid(),
            started_at=time.time(),
            expires_at=0.0,
        )
        self._enter()
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._renew_until_closed, name=f"worker-{name}", daemon=True
        )
        self._thread.start()

    @property
    def id(self) -> str:
        """The name of the worker in its claims."""
        return self._worker.id

    def _enter(self) -> None:
        """Write the entry, and remove those of workers that have ended."""
        now = self._clock()
        with self._store.write(durable=False) as conn:
            alive = live_workers(conn, now)
            for other in list(alive.values()):
                if other.name != self._worker.name:
                    continue
                if (other.pid_space, other.pid) == (self._worker.pid_space, self._worker.pid):
                    # On a full disk, a worker starts again in its process and could not remove its entry.
                    del alive[other.id]
                else:
                    raise WorkerNameTaken(
                        f"{other.name}: a worker of this name (process {other.pid}) runs on this home. Stop it first."
                    )
            conn.execute(delete(workers).where(workers.c.id.not_in(list(alive))))
            self._write(conn)

    def _write(self, conn: Connection) -> None:
        expires_at = self._clock() + LIFETIME
        conn.execute(_upsert, to_row(workers, self._worker, expires_at=expires_at))

    def renew(self) -> None:
        """Renew the entry. One that another worker removed, because it had expired, is written again."""
        with self._store.write(durable=False) as conn:
            self._write(conn)

    def _renew_until_closed(self) -> None:
        while not self._closed.wait(LIFETIME / _RENEWALS):
            try:
                self.renew()
            except StoreError as error:
                log.warning("this worker's entry could not be renewed, will try again: %s", error)

    def close(self) -> None:
        """Remove the entry: what it has claimed is free."""
        self._closed.set()
        self._thread.join()
        try:
            with self._store.write(durable=False) as conn:
                conn.execute(_remove, {"which": self.id})
        except StoreError as error:
            # The process ends, which is seen as well.
            log.warning("this worker's entry could not be removed: %s", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
