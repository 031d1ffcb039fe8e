"""A bound on processor time, for what took minutes before it was mended."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def bounded_cpu_time(seconds: float) -> Iterator[None]:
    """Fail if the block takes more processor time of this thread.

    The garbage collector is off: it walks through all objects of the test run, which takes up to a second.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    begun = time.thread_time()
    try:
        yield
        spent = time.thread_time() - begun
    finally:
        if was_enabled:
            gc.enable()
    assert spent < seconds, f"took {spent:.2f} s of processor time"
