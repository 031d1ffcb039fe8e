"""Retry delays: exponential with jitter, or as the server's Retry-After header requests."""

from __future__ import annotations

import email.utils
import random
import time


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


class Backoff:
    """Delays between the attempts of one call: at most `retries`, each at most `longest` seconds (plus jitter)."""

    def __init__(self, retries: int, *, longest: float, first: float = 0.5) -> None:
        self._attempts_left = retries
        self._attempts_made = 0
        self._longest = longest
        self._first = first

    def next_delay(self, asked: float | None = None) -> float | None:
        """Return the seconds until the next attempt; None if no attempt is left or `asked` exceeds `longest`."""
        if self._attempts_left <= 0 or (asked is not None and asked > self._longest):
            return None
        self._attempts_left -= 1
        self._attempts_made += 1
        own = backoff_delay(self._attempts_made, first=self._first, longest=self._longest)
        return own if asked is None else asked + own * 0.1
