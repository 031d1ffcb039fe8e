"""Ends a process when its parent process ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.5  # seconds


def die_with_parent(parent: int = 0) -> None:
    """End this process when its parent ends, even by SIGKILL.

    `parent`: the expected parent's process id; if it has already ended, this process ends at once. 0: the current
    parent.
    """
    parent = parent or os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)

    def watch_parent() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch_parent, daemon=True, name="parent-watch").start()
