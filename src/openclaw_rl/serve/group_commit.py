"""Group commit: one thread writes all queued items in one transaction, then resolves their futures."""

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
    """Group commit writer for admissions, finished replies and feedback.

    An item is durable when its future is done; the future gets the store's error if the write fails. If a group
    fails, its items are committed one by one, so that one invalid item does not fail the others.
    """

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._jobs: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._pending: list[_Job] = []  # from this iteration of the event loop, and items that may wait
        self._due = False
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def put(self, item: Item, *, patience: float = 0.0) -> asyncio.Future[None]:
        """Queue an item. The returned future is done when the item is on disk.

        `patience`: seconds that the item may wait for another one, to share its transaction.
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
        """Hand all pending items to the thread, so that it wakes up only once per iteration of the event loop."""
        jobs, self._pending, self._due = self._pending, [], False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if jobs:
            self._jobs.put(jobs)

    def close(self) -> None:
        """Write all queued items, then end the thread."""
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
        except Exception as error:  # any error goes to the futures; this thread must survive
            if len(jobs) > 1:
                for job in jobs:
                    self._write([job], again=True)
                return
            if not isinstance(error, StoreError | KeyError):
                log.exception("the store rejected an exchange")
            _settle(jobs, error)
        else:
            self._metrics.commit.observe(time.perf_counter() - began)
            self._metrics.commit_size.observe(len(jobs))
            _settle(jobs, None)

    def _commit(self, jobs: list[_Job], *, again: bool) -> None:
        """Write `jobs`, and the items that arrive before the commit, in one transaction. `jobs` is extended by them.

        `again`: write `jobs` only. A new item may finish a request whose own admission is retried later.
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
    """Resolve the futures of all jobs with one call into their event loop."""
    try:
        jobs[0].loop.call_soon_threadsafe(_resolve, jobs, error)
    except RuntimeError:
        log.warning("%d exchanges were written after their event loop had ended", len(jobs))


def _resolve(jobs: Sequence[_Job], error: Exception | None) -> None:
    for job in jobs:
        if job.done.done():
            continue  # its waiter was cancelled
        if error is None:
            job.done.set_result(None)
        else:
            job.done.set_exception(error)
            job.done.exception()  # mark the exception as retrieved, or asyncio warns if the waiter was cancelled
