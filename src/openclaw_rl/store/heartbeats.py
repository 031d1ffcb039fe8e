"""Heartbeats of the workers' loops, and what each worker is working on."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects.sqlite import insert

from openclaw_rl.common.process_guard import process_exists
from openclaw_rl.errors import StoreError
from openclaw_rl.store.db import Store
from openclaw_rl.store.rows import from_row
from openclaw_rl.store.schema import attempts, loops

RUNNING, STARTING, PARKED, DEGRADED = "running", "starting", "parked", "degraded"
PROBLEM_STATES = (PARKED, DEGRADED)
TIMEOUT = 10.0  # seconds without a heartbeat after which a worker counts as stopped
_put = insert(loops)
_upsert = _put.on_conflict_do_update(
    index_elements=["name"], set_={c.name: _put.excluded[c.name] for c in loops.c if c.name != "name"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The last heartbeat of one loop."""

    name: str
    pid: int
    at: float  # seconds since the epoch
    state: str  # STARTING: the next heartbeat may take minutes; PARKED: cannot work; DEGRADED: other workers crashed
    note: str  # current activity, as text; if PARKED, the reason and the cure

    def is_alive(self, now: float, stale: float = TIMEOUT) -> bool:
        """Return whether the heartbeat is younger than `stale` seconds or, while starting, the process exists.

        A heartbeat from the future was written before the clock was set back, so it is not young.
        """
        return abs(now - self.at) < stale or (self.state == STARTING and process_exists(self.pid))


def write_heartbeat(store: Store, name: str, note: str = "", state: str = RUNNING, pid: int | None = None) -> None:
    """Record that loop `name` is alive now, in this process or in `pid`."""
    with store.write(durable=False) as conn:
        conn.execute(
            _upsert, {"name": name, "pid": pid or os.getpid(), "at": time.time(), "state": state, "note": note}
        )


def heartbeat_writer(store: Store, name: str, note: Callable[[], str]) -> Callable[[str | None], None]:
    """Return a function that writes the heartbeats of a loop; its argument is why the loop pauses, or None."""

    def write(problem: str | None) -> None:
        write_heartbeat(store, name, problem or note(), RUNNING if problem is None else PARKED)

    return write


def read_heartbeats(conn: Connection) -> list[Heartbeat]:
    """Return the last heartbeat of every loop, sorted by name."""
    return [from_row(Heartbeat, row) for row in conn.execute(select(loops).order_by(loops.c.name))]


def reported_problems(conn: Connection, now: float) -> list[str]:
    """Return what prevents workers from working now, with reason and cure. `now`: seconds since the epoch."""
    beats = read_heartbeats(conn)
    return [f"{beat.name}: {beat.note}" for beat in beats if beat.state in PROBLEM_STATES and beat.is_alive(now)]


MAX_DEATHS = 2
"""A row on which a worker died so often is set aside."""
MAX_SET_ASIDE = 8
"""Rows that are set aside without a success between them. After that the cause is probably not the rows."""
_SET_ASIDE_REF = ""  # counts the rows that were set aside since the last success
_put_attempt = insert(attempts)
_begin_attempt = _put_attempt.on_conflict_do_update(
    index_elements=["stage", "ref"], set_={"count": attempts.c.count + 1}
)


class AttemptLog:
    """The rows that a stage is working on. A worker that began with a row and did not end it has died on it.

    The notes are committed without a wait for the disk: they survive a kill of the process, which is what they count.
    """

    def __init__(self, store: Store, stage: str) -> None:
        self._store, self._stage = store, stage
        # Rows that this process began, with their deaths before: it has not died on them, even if a full disk kept
        # their notes in the store.
        self._begun: dict[str, int] = {}
        self._ended: dict[str, int] = {}  # of these, the rows that ended in the newest transaction

    def begin(self, refs: Collection[str]) -> dict[str, int]:
        """Note that the work on these rows begins. Return how often a worker died on each of them, if it did."""
        if fresh := [ref for ref in refs if ref not in self._begun]:
            with self._store.write(durable=False) as conn:
                before = self._counts(conn)
                conn.execute(_begin_attempt, [{"stage": self._stage, "ref": ref, "count": 1} for ref in fresh])
            self._begun |= {ref: before.get(ref, 0) for ref in fresh}
        return {ref: deaths for ref in refs if (deaths := self._begun[ref])}

    def end(self, conn: Connection, refs: Collection[str] | None = None, *, success: bool = True) -> None:
        """Remove the notes of these rows (None: all), in the transaction of the result."""
        self._ended = {ref: self._begun.pop(ref) for ref in list(self._begun) if refs is None or ref in refs}
        named = attempts.c.ref != _SET_ASIDE_REF if refs is None else attempts.c.ref.in_(list(refs))
        rows = named | (attempts.c.ref == _SET_ASIDE_REF) if success else named
        conn.execute(delete(attempts).where(attempts.c.stage == self._stage, rows))

    def forget(self, refs: Collection[str] | None = None) -> None:
        """Remove the notes of these rows (None: all): the work was interrupted by something else, such as a stop."""
        try:
            with self._store.write(durable=False) as conn:
                self.end(conn, refs, success=False)
        except StoreError:
            self._begun |= self._ended
            raise

    @contextmanager
    def interrupted_by(self, *errors: type[Exception]) -> Iterator[None]:
        """Forget the notes if the block raises one of these errors, which no row causes."""
        try:
            yield
        except errors:
            self._begun |= self._ended
            with contextlib.suppress(StoreError):
                self.forget()
            raise

    def deaths(self) -> dict[str, int]:
        """Return how often a worker died on each row whose work has not ended since."""
        with self._store.read() as conn:
            counts = {ref: count for ref, count in self._counts(conn).items() if ref != _SET_ASIDE_REF} | self._begun
        return {ref: count for ref, count in counts.items() if count}

    def give_up(self, conn: Connection, ref: str, deaths: int) -> str | None:
        """Return why a row is to be set aside; None if workers died on it less than twice, or if it is not the cause.

        The caller sets the row aside in the same transaction.
        """
        if deaths < MAX_DEATHS or self._counts(conn).get(_SET_ASIDE_REF, 0) >= MAX_SET_ASIDE:
            return None
        self._begun.pop(ref, None)
        conn.execute(delete(attempts).where(attempts.c.stage == self._stage, attempts.c.ref == ref))
        conn.execute(_begin_attempt, {"stage": self._stage, "ref": _SET_ASIDE_REF, "count": 1})
        return f"set aside: the {self._stage} worker died {deaths} times while it worked on it"

    def _counts(self, conn: Connection) -> dict[str, int]:
        rows = conn.execute(select(attempts.c.ref, attempts.c.count).where(attempts.c.stage == self._stage))
        return {row.ref: int(row[1]) for row in rows}
