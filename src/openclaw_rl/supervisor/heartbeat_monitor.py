"""Decides from its heartbeats whether a worker hangs."""

from __future__ import annotations

CHECK_INTERVAL = 1.0  # seconds between two checks of the heartbeats


class HeartbeatMonitor:
    """Measures how long one worker has been without a heartbeat.

    Only time between two checks counts, and a long gap counts little: if the machine or the supervisor was suspended,
    the workers may have been, too. A worker is starting, which may include loading a model, until it sends a heartbeat
    that says otherwise.
    """

    def __init__(self, *, hang: float, start: float) -> None:
        """`hang`, `start`: limits in seconds without a heartbeat, for a running and for a starting worker."""
        self.silent_seconds = 0.0  # seconds
        self._running_limit, self._starting_limit = hang, start
        self._has_started = False
        self._last_beat: float | None = None
        self._checked_at: float | None = None

    @property
    def silence_limit(self) -> float:
        """Seconds without a heartbeat after which the worker counts as hung."""
        return self._running_limit if self._has_started else self._starting_limit

    @property
    def is_hung(self) -> bool:
        return self.silent_seconds >= self.silence_limit

    def record_check(self, beat: float | None, now: float, *, own: bool = True, starting: bool = False) -> bool:
        """Record a check and return `is_hung`. `beat`: time of the worker's last heartbeat, by the sender's clock.

        `own`: this process sent it; a beat of another process does not end the start. `starting`: the beat says that
        the worker still starts. `now`: monotonic.
        """
        passed = 0.0 if self._checked_at is None else min(now - self._checked_at, 2 * CHECK_INTERVAL)
        self._checked_at = now
        if beat is not None and beat != self._last_beat:
            self._has_started |= own and not starting
            self._last_beat, self.silent_seconds = beat, 0.0
        else:
            self.silent_seconds += passed
        return self.is_hung
