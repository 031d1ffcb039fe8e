"""Retry delays: exponential with jitter, or as the Retry-After header requests."""

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
        moment = _parse_date(header)
        if moment is None:
            return None
        if now is None:
            now = time.time()
        seconds = moment - now
    # Neither infinity nor NaN is a delay.
    if not seconds < float("inf"):
        return None
    return max(seconds, 0.0)


def _parse_date(text: str) -> float | None:
    """Return the time of an HTTP date, in seconds since 1970; None for another text."""
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError):
        return None


def backoff_delay(failures: int, *, first: float, longest: float) -> float:
    """Return the delay in seconds after `failures` (1, 2, ...): doubles up to `longest`, minus 0-50% jitter."""
    full = min(first * 2.0 ** min(failures - 1, 32), longest)
    return full * random.uniform(0.5, 1.0)
