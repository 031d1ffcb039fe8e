"""Ends a process when its parent process ends."""

from __future__ import annotations

import os
import signal
import threading
import time

from openclaw_rl.common.process_guard import set_parent_death_signal

# Seconds.
_POLL_SECONDS = 0.5


def die_with_parent(parent: int = 0) -> None:
    """End this process when its parent ends, even by SIGKILL.

    `parent`: the expected parent's process id; if it has already ended, this process ends at once. 0: the current
    parent.
    """
    parent = parent or os.getppid()
    set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)

    def watch_parent() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch_parent, daemon=True, name="parent-watch").start()
