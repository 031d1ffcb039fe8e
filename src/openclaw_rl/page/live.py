"""Say to open pages which parts of them have changed, by server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from enum import StrEnum

from openclaw_rl.errors import StoreError
from openclaw_rl.store import acts, events
from openclaw_rl.store.db import Store

log = logging.getLogger("openclaw_rl.page")

MAX_STREAMS = 32
"""Pages that are followed at once; a new one ends the oldest."""
POLL_SECONDS = 1.0
BEAT_SECONDS = 5.0
"""Seconds between two updates of what workers say of themselves."""
_EVENTS_PER_READ = 1000


class PageChange(StrEnum):
    """Data that has changed. The browser asks again for the parts that show it."""

    TURNS = "turns"
    LESSONS = "lessons"
    VERSIONS = "versions"
    EPISODES = "episodes"
    WORKERS = "workers"


_CHANGES_BY_KIND = {
    "exchange": PageChange.TURNS,
    "feedback": PageChange.TURNS,
    "turn": PageChange.TURNS,
    "lesson": PageChange.LESSONS,
    "policy": PageChange.VERSIONS,
    "episode": PageChange.EPISODES,
    "group": PageChange.EPISODES,
}


def change_of_event(kind: str) -> PageChange | None:
    """Return what an event of the log changes, by the first word of its kind."""
    return _CHANGES_BY_KIND.get(kind.partition(".")[0])


class LiveChanges:
    """Reads the event log and the audit while pages are open, and passes on what has changed.

    An act of the owner, such as a pin, may change what several parts show, and add no event: all are asked for again.
    """

    def __init__(self, store: Store, executor: Executor) -> None:
        """`executor`: runs the reads, which must not wait behind views."""
        self._store = store
        self._executor = executor
        self._streams: deque[asyncio.Queue[frozenset[PageChange] | None]] = deque()
        # None: not read so far.
        self._seen: int | None = None
        self._seen_act = 0

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    async def follow(self) -> AsyncIterator[frozenset[PageChange]]:
        """Yield sets of changes until the page is closed, or newer pages take its place."""
        queue: asyncio.Queue[frozenset[PageChange] | None] = asyncio.Queue(maxsize=16)
        self._streams.append(queue)
        while len(self._streams) > MAX_STREAMS:
            self._end(self._streams.popleft())
        try:
            while (changes := await queue.get()) is not None:
                yield changes
        finally:
            if queue in self._streams:
                self._streams.remove(queue)

    async def run(self) -> None:
        """Poll the store; cheap while no page is open."""
        beat_at = 0.0
        loop = asyncio.get_running_loop()
        # What happened before is in the pages already.
        await self._read_changes()
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if not self._streams:
                continue
            changes = await self._read_changes()
            if loop.time() - beat_at >= BEAT_SECONDS:
                beat_at = loop.time()
                changes |= {PageChange.WORKERS}
            if changes:
                self._send(changes)

    async def _read_changes(self) -> frozenset[PageChange]:
        """Return what has changed; nothing if it cannot be read for now."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor, self._new_changes)
        except StoreError as error:
            log.warning("the event log cannot be read: %s", error)
        except Exception:
            # Any bug: the pages get no more changes for now, and the log says why.
            log.exception("the changes cannot be read")
        return frozenset()

    def close(self) -> None:
        """End all streams."""
        while self._streams:
            self._end(self._streams.popleft())

    def _send(self, changes: frozenset[PageChange]) -> None:
        for queue in list(self._streams):
            if queue.full():
                # The browser reads no longer.
                self._streams.remove(queue)
                self._end(queue)
            else:
                queue.put_nowait(changes)

    @staticmethod
    def _end(queue: asyncio.Queue[frozenset[PageChange] | None]) -> None:
        if queue.full():
            queue.get_nowait()
        queue.put_nowait(None)

    def _new_changes(self) -> frozenset[PageChange]:
        if not self._store.has_changed():
            return frozenset()
        with self._store.read() as conn:
            act = acts.last_seq(conn)
            if self._seen is None:
                self._seen = events.last_seq(conn)
                self._seen_act = act
                return frozenset()
            rows = events.read_after(conn, self._seen, _EVENTS_PER_READ)
            # With so many, nobody has looked for long.
            may_all_have_changed = act > self._seen_act or len(rows) == _EVENTS_PER_READ
            self._seen_act = act
            if may_all_have_changed:
                self._seen = events.last_seq(conn)
                return frozenset(PageChange)
        self._seen = max((row.seq for row in rows), default=self._seen)
        changes = {change_of_event(row.kind) for row in rows}
        return frozenset(change for change in changes if change is not None)
