"""The workers that run on a home. A claim of a worker ends with the worker, or with its entry.

A worker renews its entry. An entry that is not renewed for `LIFETIME` expires, so that a process that was suspended
loses its claims. Beside it, the worker keeps a file locked: the kernel releases the lock when the process ends,
whatever ends it and in whichever container it ran, and then the entry counts for nothing at once. Times are seconds
since the boot of the machine, so a jump of the wall clock ends no worker.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, bindparam, delete, select
from sqlalchemy.dialects.sqlite import insert

from openclaw_rl.common import steady_clock
from openclaw_rl.errors import StoreError, WorkerNameTaken
from openclaw_rl.store.db import Store
from openclaw_rl.store.rows import from_row, to_row
from openclaw_rl.store.workers.tables import workers

log = logging.getLogger(__name__)
LIFETIME = 60.0
"""Seconds after which an entry that is not renewed expires."""
_RENEWALS = 4
"""Renewals within a lifetime: some may fail while the store is busy."""
_put = insert(workers)
_upsert = _put.on_conflict_do_update(
    index_elements=["id"], set_={"expires_at": _put.excluded.expires_at}
)
_remove = delete(workers).where(workers.c.id == bindparam("which"))
_list = select(workers).order_by(workers.c.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A process that works, or worked, on the home."""

    id: str
    name: str  # of its heartbeat; unique among the workers that run
    pid: int
    expires_at: float  # seconds since the boot of the machine


def live_workers(store: Store, conn: Connection, now: float | None = None) -> dict[str, Worker]:
    """Return the workers whose claims count, by id. `now`: seconds since the boot; None: now."""
    seconds = steady_clock.boot_seconds() if now is None else now
    found = [from_row(Worker, row) for row in conn.execute(_list)]
    return {
        worker.id: worker
        for worker in found
        if worker.expires_at > seconds and _is_locked(_lock_path(store, worker.id))
    }


def _lock_path(store: Store, worker: str) -> Path:
    """Return the file that a worker keeps locked while it runs."""
    return store.path.parent / "workers" / worker


def _is_locked(path: Path) -> bool:
    """Return whether a running process keeps a file locked."""
    try:
        with path.open("rb") as file:
            # Shared: two that ask at a time do not see each other.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


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
        self._worker = Worker(id=uuid.uuid4().hex, name=name, pid=os.getpid(), expires_at=0.0)
        self._path = _lock_path(store, self.id)
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        self._lock = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self._enter()
        except BaseException:
            self._unlock()
            raise
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
        """Write the entry, and remove those of workers that have ended. Raises `WorkerNameTaken`."""
        with self._store.write(durable=False) as conn:
            alive = live_workers(self._store, conn, self._clock())
            for other in alive.values():
                if other.name == self._worker.name:
                    raise WorkerNameTaken(
                        f"{other.name}: process {other.pid} works on this home already. Stop it first."
                    )
            self._remove_ended(conn)
            self._write(conn)

    def _remove_ended(self, conn: Connection) -> None:
        """Remove the entries of workers that have ended. One that is suspended may renew its own."""
        for worker in conn.execute(select(workers.c.id)).scalars().all():
            path = _lock_path(self._store, worker)
            if not _is_locked(path):
                path.unlink(missing_ok=True)
                conn.execute(_remove, {"which": worker})

    def _write(self, conn: Connection) -> None:
        expires_at = self._clock() + LIFETIME
        conn.execute(_upsert, to_row(workers, self._worker, expires_at=expires_at))

    def renew(self) -> None:
        """Renew the entry, also after it has expired."""
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
            # Without its lock, it counts for nothing.
            log.warning("this worker's entry could not be removed: %s", error)
        self._unlock()

    def _unlock(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
