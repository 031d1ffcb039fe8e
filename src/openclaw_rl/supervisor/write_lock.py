"""Finds a process that holds the store's write lock and never releases it, such as a frozen one.

Nothing can be written meanwhile, not even a heartbeat, so heartbeats do not show who hangs. Linux names the holders of
all file locks in `/proc/locks`. The files of the store must not be opened for this: closing one of them would release
the locks of this process on it. On other systems no holder is found.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CHECK_INTERVAL = 0.5  # seconds between two checks
FROZEN_LIMIT = 2.0  # seconds after which a stopped process is killed; requests wait for the lock for 10 s
HELD_LIMIT = 9.0  # the same for a process that is not stopped; no transaction takes so long
_WRITE_LOCK_BYTE = 120  # in the `-shm` file: https://sqlite.org/walformat.html#wal_locks
_LOCKS_FILE, _PROCESSES = Path("/proc/locks"), Path("/proc")


@dataclass(frozen=True, slots=True)
class StuckWriter:
    """A process that has held the write lock for `seconds` without a commit."""

    pid: int
    seconds: float


class WriteLockMonitor:
    """Measures for how long one process has held the write lock of a store without a commit."""

    def __init__(self, store_path: Path) -> None:
        self._index = store_path.with_name(f"{store_path.name}-shm")
        self._log = store_path.with_name(f"{store_path.name}-wal")
        self._seen: tuple[int, int] | None = None  # process id of the holder, and the time of the last commit
        self._held_seconds = 0.0
        self._checked_at = 0.0

    def find_stuck_writer(self, now: float) -> StuckWriter | None:
        """Return the process that is to be killed, or None. `now`: monotonic seconds.

        A long gap between two calls counts little: this process may have been suspended with all others.
        """
        passed = min(now - self._checked_at, 2 * CHECK_INTERVAL)
        self._checked_at = now
        seen = self._look()
        self._held_seconds = self._held_seconds + passed if seen is not None and seen == self._seen else 0.0
        self._seen = seen
        if seen is None:
            return None
        state = _process_state(seen[0])
        limit = FROZEN_LIMIT if state in ("T", "t") else HELD_LIMIT
        if self._held_seconds < limit or state == "D":  # D: it waits for the disk
            return None
        return StuckWriter(seen[0], self._held_seconds)

    def _look(self) -> tuple[int, int] | None:
        try:
            inode, changed_at = self._index.stat().st_ino, self._log.stat().st_mtime_ns
            lines = _LOCKS_FILE.read_text().splitlines()
        except OSError:
            return None
        holder = next((pid for line in lines if (pid := _holder(line, inode)) is not None), None)
        return None if holder is None else (holder, changed_at)


def _holder(line: str, inode: int) -> int | None:
    """Return who holds the write lock by a line such as `1: POSIX  ADVISORY  WRITE 14555 fe:00:2425766 120 120`."""
    fields = line.split()
    if len(fields) != 8 or fields[1] != "POSIX" or fields[3] != "WRITE":  # a line of a waiting process has an arrow
        return None
    is_file = fields[5].rpartition(":")[2] == str(inode)
    if not is_file or not fields[6].isdigit() or not fields[7].isdigit():
        return None
    return int(fields[4]) if int(fields[6]) <= _WRITE_LOCK_BYTE <= int(fields[7]) else None


def _process_state(pid: int) -> str:
    """Return the state of a process as in `ps`: R, S, D, T, ...; empty if it is unknown."""
    try:
        return (_PROCESSES / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
