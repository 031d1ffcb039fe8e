"""Progress of long work, from which the heartbeat of its process follows.

A hang is work without progress for `run.heartbeat_timeout` seconds. A long step is not a hang: each forward pass, each
microbatch and each imported trajectory is progress.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

MAX_LIBRARY_SECONDS = 1800.0
"""Seconds for which a call of a library that reports nothing counts as progress, as while a worker starts."""
_count = 0
_library_deadline = float("-inf")  # monotonic seconds


def record_progress() -> None:
    """Record that the work of this process has advanced. It takes a fraction of a microsecond."""
    global _count
    _count += 1


def progress_count() -> int:
    """Return a number that changes with each `record_progress`, and with each second of a `library_call`."""
    now = time.monotonic()
    return _count + (int(now) if now < _library_deadline else 0)


@contextmanager
def library_call() -> Iterator[None]:
    """Let the time of a block count as progress: a library reads, writes or compiles a whole model in it."""
    global _library_deadline
    _library_deadline = time.monotonic() + MAX_LIBRARY_SECONDS
    try:
        yield
    finally:
        _library_deadline = float("-inf")
        record_progress()
