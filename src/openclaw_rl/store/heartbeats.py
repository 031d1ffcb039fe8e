"""Heartbeats of the workers' loops, and what each worker is working on."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
from sqlalchemy import Connection, delete, select, update
from sqlalchemy.dialects.sqlite import Insert, insert

from openclaw_rl.common.process_guard import process_exists
from openclaw_rl.common.progress import Activity, Wait, current_activity, progress_count
from openclaw_rl.errors import StoreError
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store.db import Store
from openclaw_rl.store.rows import from_row
from openclaw_rl.store.schema import attempts, loops

RUNNING = "running"
STARTING = "starting"
PARKED = "parked"
DEGRADED = "degraded"
PROBLEM_STATES = (PARKED, DEGRADED)
# Seconds without a heartbeat after which a worker counts as stopped.
TIMEOUT = 10.0
_put = insert(loops)


def _make_upsert(*unchanged: str) -> Insert:
    """Return the statement that writes a heartbeat and keeps these columns of the one before."""
    written = [column.name for column in loops.c if column.name not in ("name", *unchanged)]
    return _put.on_conflict_do_update(
        index_elements=["name"], set_={name: _put.excluded[name] for name in written}
    )


_write_advance = _make_upsert()
_write_without_advance = _make_upsert("advanced_at")
_activity_decoder = msgspec.json.Decoder(Activity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The last heartbeat of one loop."""

    name: str
    pid: int
    at: float  # seconds since the epoch
    # STARTING: the next heartbeat may take minutes; PARKED: cannot work; DEGRADED: other workers crashed.
    state: str
    note: str  # what the worker waits for or works on, as text; if PARKED, the reason and the cure
    advanced_at: float = 0.0  # seconds since the epoch; when its work last advanced
    activity: Activity | None = None  # a piece of work that takes long
    waits: frozenset[Wait] = frozenset()
    """Its waits, of a trainer those of all its policies; empty while it works."""

    def is_alive(self, now: float, stale: float = TIMEOUT) -> bool:
        """Return whether the heartbeat is younger than `stale` seconds or, while starting, the process exists.

        A heartbeat from the future was written before the clock was set back, so it is not young.
        """
        return abs(now - self.at) < stale or (self.state == STARTING and process_exists(self.pid))


def write_heartbeat(
    store: Store,
    name: str,
    note: str = "",
    state: str = RUNNING,
    pid: int | None = None,
    *,
    advanced: bool = True,
    activity: Activity | None = None,
    waits: Collection[Wait] = (),
) -> None:
    """Record that loop `name` is alive now, in this process or in `pid`.

    `advanced`: whether its work has advanced since the heartbeat before; `activity`: what it works on; `waits`: what it
    waits for.
    """
    now = time.time()
    row = {"name": name, "pid": pid or os.getpid(), "at": now, "state": state, "note": note}
    row |= {
        "advanced_at": now,
        "activity": "" if activity is None else msgspec.json.encode(activity).decode(),
        "waits": msgspec.json.encode(sorted(waits)).decode(),
    }
    with store.write(durable=False) as conn:
        conn.execute(_write_advance if advanced else _write_without_advance, row)


class ProgressReader:
    """Says of each heartbeat of this process whether the work has advanced since the one before."""

    def __init__(self) -> None:
        self._count: int | None = None

    def has_advanced(self) -> bool:
        """Return whether there was progress since the last call (True on the first)."""
        count = progress_count()
        advanced = count != self._count
        self._count = count
        return advanced


def heartbeat_writer(
    store: Store, name: str, note: Callable[[], str], waits: Callable[[], Collection[Wait]] = tuple
) -> Callable[[str | None], None]:
    """Return a function that writes the heartbeats of a loop; its argument is why the loop pauses, or None.

    `note`, `waits`: return what the loop does, as text, and what it waits for.
    """
    progress = ProgressReader()

    def write(problem: str | None) -> None:
        write_heartbeat(
            store,
            name,
            problem or note(),
            RUNNING if problem is None else PARKED,
            advanced=progress.has_advanced(),
            activity=current_activity(),
            waits=waits() if problem is None else (),
        )

    return write


def read_heartbeats(conn: Connection) -> list[Heartbeat]:
    """Return the last heartbeat of every loop, sorted by name."""
    rows = conn.execute(select(loops).order_by(loops.c.name))
    return [
        from_row(
            Heartbeat, row, activity=_read_activity(row.activity), waits=_read_waits(row.waits)
        )
        for row in rows
    ]


def _read_activity(text: str) -> Activity | None:
    """Return a stored activity; None without one, or if a later version of the program wrote it."""
    if not text:
        return None
    try:
        return _activity_decoder.decode(text)
    except msgspec.MsgspecError:
        return None


def _read_waits(text: str) -> frozenset[Wait]:
    """Return what a stored heartbeat waits for, without what only a later version of the program knows."""
    known = {wait.value: wait for wait in Wait}
    return frozenset(known[value] for value in msgspec.json.decode(text) if value in known)


def reported_problems(conn: Connection, now: float) -> list[str]:
    """Return what prevents workers from working now, with reason and cure. `now`: seconds since the epoch."""
    beats = read_heartbeats(conn)
    return [
        f"{beat.name}: {beat.note}"
        for beat in beats
        if beat.state in PROBLEM_STATES and beat.is_alive(now)
    ]


def has_problem(conn: Connection, name: str, now: float) -> bool:
    """Return whether the worker `name` says that it cannot work now."""
    return any(
        beat.name == name and beat.state == PARKED and beat.is_alive(now)
        for beat in read_heartbeats(conn)
    )


MAX_DEATHS = 2
"""A row on which a worker died so often is set aside."""
MAX_SET_ASIDE = 8
"""Rows that are set aside without a success between them. After that the cause is probably not the rows."""
# Counts the rows that were set aside since the last success.
_SET_ASIDE_REF = ""
_put_attempt = insert(attempts)
_begin_attempt = _put_attempt.on_conflict_do_update(
    index_elements=["stage", "ref"],
    set_={"count": attempts.c.count + 1, "pid": _put_attempt.excluded.pid},
)
MAX_EXCUSED = 2
"""Deaths on a row that the machine caused and that count for nothing. More of them may be the fault of the row, for
example of a batch that needs more memory than there is."""


def excuse_deaths(store: Store, pid: int) -> int:
    """Record that the machine ended the process `pid`, not the rows that it worked on. Return their number."""
    with store.write() as conn:
        changed = conn.execute(
            update(attempts)
            .where(
                attempts.c.pid == pid,
                attempts.c.ref != _SET_ASIDE_REF,
                attempts.c.excused < MAX_EXCUSED,
            )
            .values(excused=attempts.c.excused + 1)
        )
    return changed.rowcount


class AttemptLog:
    """The rows that a stage is working on. A worker that began with a row and did not end it has died on it.

    The notes are committed without a wait for the disk: they survive a kill of the process, which is what they count.
    """

    def __init__(self, store: Store, stage: str) -> None:
        self._store = store
        self._stage = stage
        # Rows that this process began, with their deaths before: it has not died on them, even if a full disk kept
        # their notes in the store.
        self._begun: dict[str, int] = {}
        # Of these, the rows that ended in the newest transaction.
        self._ended: dict[str, int] = {}

    def begin(self, refs: Collection[str]) -> dict[str, int]:
        """Note that the work on these rows begins. Return how often a worker died on each of them, if it did."""
        fresh = [ref for ref in refs if ref not in self._begun]
        if fresh:
            self._note_begin(fresh)
        deaths = {ref: self._begun[ref] for ref in refs}
        return {ref: count for ref, count in deaths.items() if count}

    def _note_begin(self, refs: Collection[str]) -> None:
        pid = os.getpid()
        rows = [{"stage": self._stage, "ref": ref, "count": 1, "pid": pid} for ref in refs]
        with self._store.write(durable=False) as conn:
            before = self._counts(conn)
            conn.execute(_begin_attempt, rows)
        for ref in refs:
            self._begun[ref] = before.get(ref, 0)

    def end(
        self, conn: Connection, refs: Collection[str] | None = None, *, success: bool = True
    ) -> None:
        """Remove the notes of these rows (None: all), in the transaction of the result."""
        if refs is None:
            refs = list(self._begun)
            named = attempts.c.ref != _SET_ASIDE_REF
        else:
            named = attempts.c.ref.in_(list(refs))
        self._ended = {ref: self._begun.pop(ref) for ref in refs if ref in self._begun}
        rows = named
        if success:
            rows = named | (attempts.c.ref == _SET_ASIDE_REF)
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
            counts = {
                ref: count for ref, count in self._counts(conn).items() if ref != _SET_ASIDE_REF
            } | self._begun
        return {ref: count for ref, count in counts.items() if count}

    def give_up(self, conn: Connection, ref: str, deaths: int) -> Reason | None:
        """Return why a row is to be set aside; None if workers died on it less than twice, or if it is not the cause.

        The caller sets the row aside in the same transaction.
        """
        if deaths < MAX_DEATHS or self._counts(conn).get(_SET_ASIDE_REF, 0) >= MAX_SET_ASIDE:
            return None
        self._begun.pop(ref, None)
        conn.execute(delete(attempts).where(attempts.c.stage == self._stage, attempts.c.ref == ref))
        conn.execute(
            _begin_attempt,
            {"stage": self._stage, "ref": _SET_ASIDE_REF, "count": 1, "pid": os.getpid()},
        )
        detail = f"set aside: the {self._stage} worker died {deaths} times while it worked on it"
        return Reason(ReasonCode.SET_ASIDE, detail)

    def _counts(self, conn: Connection) -> dict[str, int]:
        deaths = attempts.c.count - attempts.c.excused
        rows = conn.execute(select(attempts.c.ref, deaths).where(attempts.c.stage == self._stage))
        return {row.ref: int(row[1]) for row in rows}
