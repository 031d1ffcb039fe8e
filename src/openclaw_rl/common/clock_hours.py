"""A part of the day, such as "22:00-06:00"."""

from __future__ import annotations

from datetime import time


def parse_hours(text: str) -> tuple[time, time]:
    """Return (begin, end) of "HH:MM-HH:MM". Raises `ValueError`."""
    begin, dash, end = text.partition("-")
    try:
        if dash:
            return time.fromisoformat(begin.strip()), time.fromisoformat(end.strip())
    except ValueError:
        pass
    raise ValueError(f'expected two times of day such as "22:00-06:00", got {text!r}')


def is_within_hours(text: str, now: time) -> bool:
    """Return whether `now` is in the part of the day, which may span midnight; equal times mean the whole day."""
    begin, end = parse_hours(text)
    if begin < end:
        return begin <= now < end
    return now >= begin or now < end
