"""Clocks that do not jump: for leases and time limits on one machine, whatever is done to the wall clock."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Seconds; smaller differences are corrections of the wall clock.
_MIN_JUMP = 5.0


def boot_seconds() -> float:
    """Return seconds since this machine booted, the same in every process. On Linux it counts suspended time, too."""
    return (
        time.clock_gettime(time.CLOCK_BOOTTIME)
        if hasattr(time, "CLOCK_BOOTTIME")
        else time.monotonic()
    )


@cache
def boot_name() -> str:
    """Return a name of this machine and its present boot, within which `boot_seconds` can be compared."""
    name = ""
    with contextlib.suppress(OSError):
        name = _BOOT_ID.read_text(encoding="ascii").strip()
    # macOS.
    if not name:
        with contextlib.suppress(OSError):
            command = ["sysctl", "-n", "kern.bootsessionuuid"]
            name = subprocess.run(
                command, capture_output=True, text=True, check=False
            ).stdout.strip()
    return f"{socket.gethostname()}/{name[:8].lower() or 'unknown'}"


class AdvancingWallClock:
    """Wall clock that follows jumps forwards, and never goes back.

    What is recorded by one process has times in the order in which it happened. After the wall clock was set back, this
    one stays ahead of it.
    """

    def __init__(
        self, *, wall: Callable[[], float] = time.time, steady: Callable[[], float] = boot_seconds
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._offset = float("-inf")

    def __call__(self) -> float:
        """Return seconds since the epoch."""
        steady = self._steady()
        self._offset = max(self._offset, self._wall() - steady)
        return steady + self._offset


class GuardedWallClock:
    """Wall clock whose jumps forwards are believed only after `hold` seconds.

    A time limit of `hold` seconds by this clock is not cut short by a clock that is set ahead, wrongly or not.
    """

    def __init__(
        self,
        hold: float,
        *,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = boot_seconds,
    ) -> None:
        self._hold = hold
        self._wall = wall
        self._steady = steady
        self._offset = wall() - steady()
        # Seconds that are not believed, and until when.
        self._jump = 0.0
        self._until = float("-inf")

    def __call__(self) -> float:
        """Return seconds since the epoch."""
        wall = self._wall()
        steady = self._steady()
        moved = wall - steady - self._offset
        self._offset = wall - steady
        if steady >= self._until:
            self._jump = 0.0
        if abs(moved) >= _MIN_JUMP:
            self._jump = max(0.0, self._jump + moved)
            self._until = steady + self._hold
        return wall - self._jump


recorded_time = AdvancingWallClock()
"""Seconds since the epoch for what a process records of conversations: a reply ends before its reaction begins."""
