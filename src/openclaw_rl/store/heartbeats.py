"""Heartbeats of the workers' loops."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from sqlalchemy import Connection, select
from sqlalchemy.dialects.sqlite import insert

from openclaw_rl.common.process_guard import process_exists
from openclaw_rl.store.db import Store
from openclaw_rl.store.rows import from_row
from openclaw_rl.store.schema import loops

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
        """Return whether the heartbeat is younger than `stale` seconds or, while starting, the process exists."""
        return now - self.at < stale or (self.state == STARTING and process_exists(self.pid))


def write_heartbeat(store: Store, name: str, note: str = "", state: str = RUNNING, pid: int | None = None) -> None:
    """Record that loop `name` is alive now, in this process or in `pid`."""
    with store.write(durable=False) as conn:
        conn.execute(
            _upsert, {"name": name, "pid": pid or os.getpid(), "at": time.time(), "state": state, "note": note}
        )


def read_heartbeats(conn: Connection) -> list[Heartbeat]:
    """Return the last heartbeat of every loop, sorted by name."""
    return [from_row(Heartbeat, row) for row in conn.execute(select(loops).order_by(loops.c.name))]


def reported_problems(conn: Connection, now: float) -> list[str]:
    """Return what prevents workers from working now, with reason and cure. `now`: seconds since the epoch."""
    beats = read_heartbeats(conn)
    return [f"{beat.name}: {beat.note}" for beat in beats if beat.state in PROBLEM_STATES and beat.is_alive(now)]
