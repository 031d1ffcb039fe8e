"""The share of the time in which practice runs beside people's replies, where they leave it no pause."""

from __future__ import annotations

PAUSE_SECONDS = 30.0
"""Seconds for which practice waits for a pause between people's replies, before it takes its share."""


class PracticeShare:
    """Decides whether the next reply for practice may run beside people's replies.

    People come first: such replies run one at a time, and only after practice got none for `PAUSE_SECONDS`. From then
    on they take `share` of the time, until a pause is long enough for a reply.
    """

    def __init__(self, share: float) -> None:
        """`share`: from 0 (never) to below 1."""
        self._share = share
        # The time since which people's replies have left no pause.
        self._refused_at: float | None = None
        # The time from which on the next reply may run beside theirs.
        self._next_at: float | None = None

    def may_run_beside(self, now: float) -> bool:
        """Return whether a reply may begin now beside people's replies. `now`: seconds of any clock."""
        return self._share > 0 and self._next_at is not None and now >= self._next_at

    def record_refusal(self, now: float) -> None:
        """Record that practice got no reply, because people's replies were running."""
        if self._refused_at is None:
            self._refused_at = now
            self._next_at = now + PAUSE_SECONDS

    def record_pause(self) -> None:
        """Record that practice got a reply in a pause between people's replies."""
        self._refused_at = None
        self._next_at = None

    def record_beside(self, began: float, ended: float) -> None:
        """Record a reply beside people's replies. The next one waits in proportion to the time that it took."""
        if self._share > 0:
            self._next_at = ended + max(0.0, ended - began) * (1.0 / self._share - 1.0)
