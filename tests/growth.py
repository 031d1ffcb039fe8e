"""How the processor time of a function grows with its input.

A bound in seconds fails on a slow or a busy machine. The quotient of two sizes does not depend on the machine.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from typing import Any

FACTOR = 8
# Linear time gives 8, quadratic time 64.
MOST = 3 * FACTOR
ATTEMPTS = 10
# Less than this is mostly the clock and the call.
SHORTEST = 0.0002


def check_linear_growth(
    function: Callable[[Any], object], prepare: Callable[[int], Any], size: int
) -> None:
    """Fail if the time for `size` is more than 24 times that for an eighth of it.

    `prepare` makes the input of a size, and is not measured. Each attempt keeps the shortest time of each size, because
    whatever disturbs a measurement makes it longer.
    """
    small, large = math.inf, math.inf
    for _ in range(ATTEMPTS):
        small = min(small, _processor_time(function, prepare(size // FACTOR)))
        large = min(large, _processor_time(function, prepare(size)))
        if large <= MOST * max(small, SHORTEST):
            return
    raise AssertionError(
        f"size {size} takes {large:.4f} s, size {size // FACTOR} takes {small:.4f} s of processor time: "
        f"{large / small:.0f} times as much, expected at most {MOST}"
    )


def _processor_time(function: Callable[[Any], object], argument: Any) -> float:
    """The garbage collector is off: it walks through all objects of the test run."""
    was_enabled = gc.isenabled()
    gc.disable()
    begun = time.thread_time()
    try:
        function(argument)
        return time.thread_time() - begun
    finally:
        if was_enabled:
            gc.enable()
