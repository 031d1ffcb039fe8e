"""The time zone of the browser, which its script writes into a cookie."""

from __future__ import annotations

from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo

ZONE_COOKIE = "openclaw_zone"


def find_zone(name: str) -> tzinfo:
    """Return the time zone of this name; UTC, which the views name, for one that this machine does not know."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        # No such zone, a path in place of a name, or a folder of the database.
        return UTC
