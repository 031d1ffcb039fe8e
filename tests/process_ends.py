"""Whether processes that others started have ended."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable


def find_running(pids: Iterable[int], *, within: float = 240.0) -> list[int]:
    """Return the processes that still run after `within` seconds. An orphan that nobody waits for has ended."""
    end, left = time.monotonic() + within, list(pids)
    while (left := [pid for pid in left if _is_running(pid)]) and time.monotonic() < end:
        time.sleep(0.02)
    return left


def _is_running(pid: int) -> bool:
    status = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout
    return bool(status.strip()) and not status.startswith("Z")
