"""Requests of tickets that are answered at once: a program with a ticket leaves capacity to the owner's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from openclaw_rl.errors import RequestError

MAX_REQUESTS = 64
"""Requests of one ticket at once."""


class TicketLoad:
    """Counts the running requests of tickets. `total`: of all tickets together."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._running: Counter[str] = Counter()

    @contextmanager
    def count_request(self, episode: str | None) -> Iterator[None]:
        """Count a request while the block runs. `episode`: of its ticket; None: an owner's key, which has no limit.

        Raises `RequestError` (429).
        """
        if episode is None:
            yield
            return
        if self._running[episode] >= MAX_REQUESTS or self._running.total() >= self.total:
            raise RequestError(
                f"too many requests at once: one episode has at most {MAX_REQUESTS}, all together {self.total}. Try "
                "again in a moment.",
                code="too_many_requests",
                status=429,
            )
        self._running[episode] += 1
        try:
            yield
        finally:
            self._running[episode] -= 1
            if not self._running[episode]:
                del self._running[episode]
