"""Wait for a state, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

WITHIN = 900.0
"""Seconds; a quiet machine needs a twentieth."""
State = TypeVar("State")


def wait_for(look: Callable[[], State]) -> State:
    """Return the first true value of `look`."""
    end = time.monotonic() + WITHIN
    while not (state := look()):
        assert time.monotonic() < end, f"not within {WITHIN:g} s"
        time.sleep(0.2)
    return state
