"""Group commit: one thread writes all queued items in one transaction, then resolves their futures."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Sequence
from typing import TypeVar

from sqlalchemy import Connection

from openclaw_rl.common import disk_space
from openclaw_rl.common.disk_space import DiskMonitor
from openclaw_rl.common.logging_metrics import GatewayMetrics
from openclaw_rl.errors import DiskFull, OpenClawError
from openclaw_rl.store import exchanges
from openclaw_rl.store.db import Store
from openclaw_rl.store.episodes import episodes
from openclaw_rl.store.episodes.records import Episode, EpisodeEnd
from openclaw_rl.store.feedback import records
from openclaw_rl.types import ExchangeStatus, Feedback, Reply, Request, Retraction

log = logging.getLogger(__name__)

WriteItem = Request | Reply | Feedback | Retraction | Episode | EpisodeEnd
MAX_GROUP_ITEMS = 256
# Seconds that a finished reply waits for space on a full disk before its client gets an error.
MAX_DISK_WAIT = 10.0
_QueuedWrite = tuple[WriteItem, asyncio.Future[None]]


class GroupCommitWriter:
    """Group commit writer for admissions, finished replies, feedback, and the begin and end of episodes.

    An item is durable when its future is done; the future gets the store's error if the write fails. If a group
    fails, its items are committed one by one, so that one invalid item does not fail the others.

    On a full disk, admissions and feedback fail at once. The end of a reply is tried again: a finished one for
    `MAX_DISK_WAIT`, as a client waits for it, any other until there is space.
    """

    def __init__(
        self, store: Store, metrics: GatewayMetrics, disk: DiskMonitor | None = None
    ) -> None:
        """`disk` learns of writes that failed because the disk is full."""
        self._store_writer = store.open_writer()
        self._metrics = metrics
        self.disk = disk or DiskMonitor(store.path.parent)
        # Ends of replies; monotonic seconds until they fail.
        self._held: list[tuple[_QueuedWrite, float]] = []
        self._may_wait = True
        self._queue: queue.SimpleQueue[list[_QueuedWrite] | None] = queue.SimpleQueue()
        # From this iteration of the event loop, and items that may wait.
        self._pending: list[_QueuedWrite] = []
        self._flush_scheduled = False
        self._flush_timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run_thread, name="store-writer", daemon=True)
        self._thread.start()

    def put(self, item: WriteItem, *, max_delay: float = 0.0) -> asyncio.Future[None]:
        """Queue an item. The returned future is done when the item is on disk.

        `max_delay`: seconds that the item may wait for another one, to share its transaction.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._pending.append((item, done))
        if not max_delay and not self._flush_scheduled:
            self._flush_scheduled = True
            loop.call_soon(self._flush_pending)
        elif max_delay and self._flush_timer is None:
            self._flush_timer = loop.call_later(max_delay, self._flush_pending)
        return done

    def _flush_pending(self) -> None:
        """Hand all pending items to the thread, so that it wakes up only once per iteration of the event loop."""
        jobs = self._pending
        self._pending = []
        self._flush_scheduled = False
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if jobs:
            self._queue.put(jobs)

    def close(self) -> None:
        """Write all queued items, then end the thread."""
        if self._pending:
            self._flush_pending()
        self._queue.put(None)
        self._thread.join()
        self._store_writer.close()

    def _run_thread(self) -> None:
        while not self._closing:
            try:
                jobs = self._queue.get(timeout=disk_space.RETRY_SECONDS / 2 if self._held else None)
            except queue.Empty:
                jobs = []
            if jobs is None:
                break
            waiting_jobs = self._held
            self._held = []
            for job, deadline in waiting_jobs:
                self._write_or_split([job], again=True, deadline=deadline)
            if jobs:
                self._write_or_split(jobs)
        # The next start marks these exchanges as failed.
        for job, _ in self._held:
            _notify_waiters([job], DiskFull("the disk is full"))

    def others_have_changed(self) -> bool:
        """Return whether anyone but this writer has committed since the last call (True on the first).

        May wait for a commit, so it is not for the event loop.
        """
        return self._store_writer.others_have_changed()

    def stop_waiting(self) -> None:
        """Let writes fail that wait for space on a full disk, because this process ends."""
        self._may_wait = False

    def _write_or_split(
        self, jobs: list[_QueuedWrite], *, again: bool = False, deadline: float | None = None
    ) -> None:
        """Commit `jobs` together, else one by one. `deadline`: until when a job may wait for space on the disk."""
        began = time.perf_counter()
        try:
            self._commit_group(jobs, again=again)
        except Exception as error:
            # Any error goes to the futures; this thread must survive.
            if len(jobs) > 1:
                for job in jobs:
                    self._write_or_split([job], again=True)
                return
            if isinstance(error, DiskFull):
                self.disk.record_failure(error)
                deadline = _disk_deadline(jobs[0][0]) if deadline is None else deadline
                if self._may_wait and time.monotonic() < deadline:
                    self._held.append((jobs[0], deadline))
                    return
            if not isinstance(error, OpenClawError | KeyError):
                log.exception("the store rejected an exchange")
            _notify_waiters(jobs, error)
        else:
            self._metrics.commit.observe(time.perf_counter() - began)
            self._metrics.commit_size.observe(len(jobs))
            _notify_waiters(jobs, None)

    def _commit_group(self, jobs: list[_QueuedWrite], *, again: bool) -> None:
        """Write `jobs`, and the items that arrive before the commit, in one transaction. `jobs` is extended by them.

        `again`: write `jobs` only. A new item may finish a request whose own admission is retried later.
        """
        with self._store_writer.write() as conn:
            group = jobs
            while group:
                _insert_items(conn, [item for item, _ in group])
                group = [] if again else self._take_late_arrivals(MAX_GROUP_ITEMS - len(jobs))
                jobs += group

    def _take_late_arrivals(self, capacity: int) -> list[_QueuedWrite]:
        late: list[_QueuedWrite] = []
        while len(late) < capacity and not self._closing and not self._queue.empty():
            more = self._queue.get()
            self._closing = more is None
            late += more or []
        return late


def _disk_deadline(item: WriteItem) -> float:
    """Return until when a write may wait for space on a full disk, in monotonic seconds."""
    if not isinstance(item, Reply):
        return float("-inf")
    return time.monotonic() + MAX_DISK_WAIT if item.status is ExchangeStatus.DONE else float("inf")


_Item = TypeVar("_Item")


def _insert_items(conn: Connection, items: Sequence[WriteItem]) -> None:
    admitted = _items_of(items, Request)
    if admitted:
        exchanges.admit(conn, admitted)
    ended = _items_of(items, Reply)
    if ended:
        exchanges.finish(conn, ended)
    feedback = _items_of(items, Feedback)
    if feedback:
        records.add_feedback(conn, feedback)
    _insert_others(conn, items)


def _items_of(items: Sequence[WriteItem], kind: type[_Item]) -> list[_Item]:
    return [item for item in items if isinstance(item, kind)]


def _insert_others(conn: Connection, items: Sequence[WriteItem]) -> None:
    for item in items:
        if isinstance(item, Retraction):
            records.retract_feedback(conn, item)
        elif isinstance(item, Episode):
            episodes.open_episode(conn, item)
        elif isinstance(item, EpisodeEnd):
            episodes.end_episode(conn, item)


def _notify_waiters(jobs: Sequence[_QueuedWrite], error: Exception | None) -> None:
    """Resolve the futures of all jobs with one call into their event loop."""
    try:
        jobs[0][1].get_loop().call_soon_threadsafe(_resolve_futures, jobs, error)
    except RuntimeError:
        log.warning("%d exchanges were written after their event loop had ended", len(jobs))


def _resolve_futures(jobs: Sequence[_QueuedWrite], error: Exception | None) -> None:
    for _, future in jobs:
        if future.done():
            # Its waiter was cancelled.
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
            # Mark the exception as retrieved, or asyncio warns if the waiter was cancelled.
            future.exception()
