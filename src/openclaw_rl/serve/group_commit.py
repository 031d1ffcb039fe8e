"""Group commit: one thread puts everything that waits into one transaction, then says so to all who wait."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from openclaw_rl.common.logging_metrics import Metrics
from openclaw_rl.errors import StoreError
from openclaw_rl.store import exchanges
from openclaw_rl.store.db import Store
from openclaw_rl.types import Feedback, Reply, Request

log = logging.getLogger(__name__)

Item = Request | Reply | Feedback
MAX_BATCH = 256


@dataclass(frozen=True, slots=True)
class _Job:
    item: Item
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]


class Writer:
    """Admissions, ends and feedback, each durable once its future is done.

    A future fails with what the store raised. One bad item never fails its neighbours: when a group fails, its items
    are committed one by one.
    """

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._jobs: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._pending: list[_Job] = []  # of this turn of the event loop, and those with patience
        self._due = False
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def put(self, item: Item, *, patience: float = 0.0) -> asyncio.Future[None]:
        """Queue an item; the future is done when it is on the disk.

        `patience`: seconds that it may wait for another item, to share its transaction.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._pending.append(_Job(item, loop, done))
        if not patience and not self._due:
            self._due = True
            loop.call_soon(self._hand_over)
        elif patience and self._timer is None:
            self._timer = loop.call_later(patience, self._hand_over)
        return done

    def _hand_over(self) -> None:
        """What one turn of the event loop brought forth, and what waited for it, wakes the thread once."""
        jobs, self._pending, self._due = self._pending, [], False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if jobs:
            self._jobs.put(jobs)

    def close(self) -> None:
        """Write what is queued, then end the thread."""
        if self._pending:
            self._hand_over()
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while not self._ended:
            jobs = self._jobs.get()
            if jobs is None:
                return
            self._write(jobs)

    def _write(self, jobs: list[_Job], *, again: bool = False) -> None:
        began = time.perf_counter()
        try:
            self._commit(jobs, again=again)
        except Exception as error:  # whatever it is, it belongs to those who wait; this thread must live
            if len(jobs) > 1:
                for job in jobs:
                    self._write([job], again=True)
                return
            if not isinstance(error, StoreError | KeyError):
                log.exception("the store refused an exchange")
            _settle(jobs, error)
        else:
            self._metrics.commit.observe(time.perf_counter() - began)
            self._metrics.commit_size.observe(len(jobs))
            _settle(jobs, None)

    def _commit(self, jobs: list[_Job], *, again: bool) -> None:
        """One transaction for `jobs` and for what arrives until it is to be committed (`jobs` grows by that).

        `again`: for `jobs` alone. What arrives may be the end of a request that is tried again only after these.
        """
        with self._store.write() as conn:
            group = jobs
            while group:
                _apply(conn, [job.item for job in group])
                group = [] if again else self._late(MAX_BATCH - len(jobs))
                jobs += group

    def _late(self, room: int) -> list[_Job]:
        late: list[_Job] = []
        while len(late) < room and not self._ended and not self._jobs.empty():
            more = self._jobs.get()
            self._ended = more is None
            late += more or []
        return late


def _apply(conn: Connection, items: Sequence[Item]) -> None:
    if admitted := [i for i in items if isinstance(i, Request)]:
        exchanges.admit(conn, admitted)
    if ended := [i for i in items if isinstance(i, Reply)]:
        exchanges.finish(conn, ended)
    if given := [i for i in items if isinstance(i, Feedback)]:
        exchanges.give(conn, given)


def _settle(jobs: Sequence[_Job], error: Exception | None) -> None:
    """Wake all waiters of a loop with one call."""
    try:
        jobs[0].loop.call_soon_threadsafe(_resolve, jobs, error)
    except RuntimeError:
        log.warning("%d exchanges were committed after their event loop had ended", len(jobs))


def _resolve(jobs: Sequence[_Job], error: Exception | None) -> None:
    for job in jobs:
        if job.done.done():
            continue  # its waiter was cancelled
        if error is None:
            job.done.set_result(None)
        else:
            job.done.set_exception(error)
            job.done.exception()  # seen: a waiter that was cancelled meanwhile is no news
