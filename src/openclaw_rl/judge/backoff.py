"""Retry delays (exponential with jitter, or as the Retry-After header requests), and a log of repeated failures."""

from __future__ import annotations

import email.utils
import logging
import random
import time

log = logging.getLogger("openclaw_rl.judge")

LOG_EVERY = 30.0  # seconds between two warnings


def retry_after_seconds(header: str | None, now: float | None = None) -> float | None:
    """Return the seconds of a Retry-After header (a number or an HTTP date); None if it is missing or invalid."""
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - (time.time() if now is None else now)
        except (TypeError, ValueError):
            return None
    return max(seconds, 0.0) if seconds < float("inf") else None


def backoff_delay(failures: int, *, first: float, longest: float) -> float:
    """Return the delay in seconds after `failures` (1, 2, ...): doubles up to `longest`, minus 0-50% jitter."""
    full = min(first * 2.0 ** min(failures - 1, 32), longest)
    return full * random.uniform(0.5, 1.0)


class FailureLog:
    """Counts consecutive failures and logs a warning about them at a limited rate."""

    def __init__(self) -> None:
        self.consecutive_failures = 0
        self.last_error = ""
        self._logged_at = float("-inf")

    def record_failure(self, words: str, waiting: int, now: float) -> None:
        """Record a failure; log a warning unless one was logged within `LOG_EVERY` seconds."""
        self.consecutive_failures += 1
        self.last_error = words
        if now - self._logged_at >= LOG_EVERY:
            self._logged_at = now
            log.warning(
                "No verdict: %s. Expected a usable answer; %d turn(s) are waiting and will be judged again. "
                "If it persists, check judge.* in the settings.",
                words.rstrip("."),
                waiting,
            )

    def record_recovery(self) -> None:
        """Record that the judge answers again."""
        if self.consecutive_failures:
            log.info("The judge answers again after %d failure(s).", self.consecutive_failures)
        self.consecutive_failures = 0
