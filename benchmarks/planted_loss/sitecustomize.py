"""Make every Python process that has this folder in PYTHONPATH use more processor time: `BENCH_PLANTED_LOSS=0.3`, 30%.

Only `benchmarks.quick --plant` does so, to show that a loss of this size is found.
"""

from __future__ import annotations

import atexit
import os
import signal
import time

# Seconds of processor time between two additions.
_INTERVAL = 0.005


class _Burner:
    def __init__(self, loss: float) -> None:
        self._loss = loss
        self._seen = 0.0
        self._is_burning = False

    def burn(self, *_signal: object) -> None:
        """Use the share of the processor time since the last call that is to be lost."""
        if self._is_burning:
            return
        self._is_burning = True
        until = time.process_time() + self._loss * (time.process_time() - self._seen)
        while time.process_time() < until:
            pass
        self._seen = time.process_time()
        self._is_burning = False

    def stop(self) -> None:
        """Use what is left, and end the signals, which a process without handlers dies of."""
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        self.burn()


if _LOSS := float(os.environ.get("BENCH_PLANTED_LOSS", "0")):
    _burner = _Burner(_LOSS)
    signal.signal(signal.SIGPROF, _burner.burn)
    signal.setitimer(signal.ITIMER_PROF, _INTERVAL, _INTERVAL)
    atexit.register(_burner.stop)
