"""Finds a process that holds the store's write lock and never releases it, such as a frozen one.

Nothing can be written meanwhile, not even a heartbeat, so heartbeats do not show who hangs. A holder that waits for a
processor or for the disk is slow, and not stuck: that time does not count (`hang_verdict`). Linux names the holders of
all file locks in `/proc/locks`. The files of the store must not be opened for this: closing one of them would release
the locks of this process on it. On other systems no holder is found.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.supervisor.hang_verdict import HangLimits, Quiet, add_interval, find_hang
from openclaw_rl.supervisor.process_usage import ProcessUsage, read_usage

# Seconds between two checks.
CHECK_INTERVAL = 0.5
# Seconds after which a stopped process is killed; requests wait for the lock for 10 s.
FROZEN_LIMIT = 2.0
# The same for one that waits for something else; no transaction waits.
HELD_LIMIT = 9.0
# The same for one that computes, in seconds of processor time.
COMPUTED_LIMIT = 60.0
# In the `-shm` file: https://sqlite.org/walformat.html#wal_locks.
_WRITE_LOCK_BYTE = 120
_LOCKS_FILE = Path("/proc/locks")


@dataclass(frozen=True, slots=True)
class StuckWriter:
    """A process that has held the write lock for `seconds` without a commit, waits for the machine not counted."""

    pid: int
    seconds: float
    is_stopped: bool  # by a signal


class WriteLockMonitor:
    """Measures for how long one process has held the write lock of a store without a commit."""

    def __init__(self, store_path: Path) -> None:
        self._index = store_path.with_name(f"{store_path.name}-shm")
        self._log = store_path.with_name(f"{store_path.name}-wal")
        # Process id of the holder, and the time of the last commit.
        self._seen: tuple[int, int] | None = None
        self._held = Quiet()
        # Of the holder, at the last check.
        self._usage: ProcessUsage | None = None
        self._checked_at = 0.0

    def find_stuck_writer(self, now: float) -> StuckWriter | None:
        """Return the process that is to be killed, or None. `now`: monotonic seconds.

        A long gap between two calls counts little: this process may have been suspended with all others.
        """
        passed = min(now - self._checked_at, 2 * CHECK_INTERVAL)
        self._checked_at = now
        seen = self._look()
        is_same = seen is not None and seen == self._seen
        self._seen = seen
        before = self._usage if is_same else None
        self._usage = None if seen is None else read_usage(seen[0])
        self._held = add_interval(self._held, passed, before, self._usage) if is_same else Quiet()
        if seen is None:
            return None
        waiting = FROZEN_LIMIT if self._held.is_stopped else HELD_LIMIT
        limits = HangLimits(waiting=waiting, computing=COMPUTED_LIMIT)
        if find_hang(self._held, limits, setting="") is None:
            return None
        return StuckWriter(seen[0], self._held.counted, self._held.is_stopped)

    def _look(self) -> tuple[int, int] | None:
        try:
            inode = self._index.stat().st_ino
            changed_at = self._log.stat().st_mtime_ns
            lines = _LOCKS_FILE.read_text().splitlines()
        except OSError:
            return None
        for line in lines:
            holder = _holder(line, inode)
            if holder is not None:
                return holder, changed_at
        return None


def _holder(line: str, inode: int) -> int | None:
    """Return who holds the write lock by a line such as `1: POSIX  ADVISORY  WRITE 14555 fe:00:2425766 120 120`."""
    fields = line.split()
    # A line of a waiting process has an arrow.
    if len(fields) != 8:
        return None
    _, kind, _, access, pid, file, first_byte, last_byte = fields
    _, _, locked_inode = file.rpartition(":")
    if (kind, access, locked_inode) != ("POSIX", "WRITE", str(inode)):
        return None
    # The last byte of a lock without an end is `EOF`.
    has_range = first_byte.isdigit() and last_byte.isdigit()
    if has_range and int(first_byte) <= _WRITE_LOCK_BYTE <= int(last_byte):
        return int(pid)
    return None
