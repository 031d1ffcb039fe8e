"""Heartbeats of the workers' loops."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec
from sqlalchemy import Connection, select
from sqlalchemy.dialects.sqlite import Insert, insert

from openclaw_rl.common.process_guard import process_exists
from openclaw_rl.common.progress import Activity, Wait, current_activity, progress_count
from openclaw_rl.store.db import Store
from openclaw_rl.store.rows import from_row
from openclaw_rl.store.schema import loops

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
