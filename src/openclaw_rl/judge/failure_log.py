"""A log of repeated failures of the judge."""

from __future__ import annotations

import logging

log = logging.getLogger("openclaw_rl.judge")

# Seconds between two warnings.
LOG_EVERY = 30.0


class FailureLog:
    """Counts consecutive failures and logs a warning about them at a limited rate."""

    def __init__(self) -> None:
        self.consecutive_failures = 0
        self.last_error = ""
        # Earliest attempt while the judge is down, on the monotonic clock; set by the caller.
        self.next_probe_at = 0.0
        self._logged_at = float("-inf")

    def record_failure(self, message: str, waiting: int, now: float) -> None:
        """Record a failure; log a warning unless one was logged within `LOG_EVERY` seconds."""
        self.consecutive_failures += 1
        self.last_error = message
        self._warn(message, waiting, now)

    def record_unreadable(self, message: str, waiting: int, now: float) -> None:
        """Record an answer that cannot be read: the judge itself is there."""
        self.record_recovery()
        self._warn(message, waiting, now)

    def _warn(self, message: str, waiting: int, now: float) -> None:
        if now - self._logged_at >= LOG_EVERY:
            self._logged_at = now
            log.warning(
                "No verdict: %s. Expected a usable answer; %d turn(s) are waiting and will be judged again. "
                "If it persists, check judge.* in the settings.",
                message.rstrip("."),
                waiting,
            )

    def record_recovery(self) -> None:
        """Record that the judge answers again."""
        if self.consecutive_failures:
            log.info("The judge answers again after %d failure(s).", self.consecutive_failures)
        self.consecutive_failures = 0
