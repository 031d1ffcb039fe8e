"""How long to wait before asking again: exponential with jitter, or what the server asks for."""

from __future__ import annotations

import email.utils
import random
import time


def seconds_asked(header: str | None, now: float | None = None) -> float | None:
    """Seconds that a Retry-After header asks for (a number or an HTTP date); None when it says nothing usable."""
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


def delay(failures: int, *, first: float, longest: float) -> float:
    """Seconds after so many failures (1, 2, ...): doubled each time, bounded, with up to a half of jitter taken off."""
    full = min(first * 2.0 ** min(failures - 1, 32), longest)
    return full * random.uniform(0.5, 1.0)


class Backoff:
    """The waits of one call: at most `retries` of them, none longer than `longest` seconds."""

    def __init__(self, retries: int, *, longest: float, first: float = 0.5) -> None:
        self._left = retries
        self._tried = 0
        self._longest = longest
        self._first = first

    def next(self, asked: float | None = None) -> float | None:
        """Seconds until the next attempt; None: give up (no attempt left, or the server asks for too long a wait)."""
        if self._left <= 0 or (asked is not None and asked > self._longest):
            return None
        self._left -= 1
        self._tried += 1
        own = delay(self._tried, first=self._first, longest=self._longest)
        return own if asked is None else asked + own * 0.1
