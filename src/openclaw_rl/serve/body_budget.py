"""Bytes of all request bodies together that the gateway reads at a time.

A body reserves its bytes before they are read; without them it waits, and its client's bytes stay with the client. A
body that makes no progress gives way to any other, and one of a ticket to one of an owner's key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from openclaw_rl.errors import RequestError

SMALL_BODY_BYTES = 256 * 1024
"""Bodies up to this size have a reserve of their own. It is the limit for feedback and episodes."""
STALLED_SECONDS = 5.0
"""Without progress for as long, a body counts as idle."""
# Fewer bytes than these are no progress.
_PROGRESS_BYTES = 4096
# Of `serve.max_body_bytes`: all bodies, those of tickets, and those up to `SMALL_BODY_BYTES`.
_TOTAL_BODIES = 3
_TICKET_BODIES = 1
_SMALL_SHARE = 0.5


@dataclass(slots=True, eq=False)
class BodyLease:
    """The bytes that one body has reserved.

    `is_displaced`: it has lost them to another body. `interrupt` ends the wait of its reader.
    """

    is_ticket: bool
    interrupt: Callable[[], None]
    reserved: int = 0
    is_waiting: bool = False
    is_complete: bool = False  # whether the client has sent the whole body
    is_displaced: bool = False
    _received: int = 0
    _progress_at: float = field(default_factory=time.monotonic)

    def note_received(self, size: int) -> None:
        """Note bytes from the client."""
        self._received += size
        if self._received >= _PROGRESS_BYTES:
            self._received = 0
            self._progress_at = time.monotonic()

    @property
    def is_arriving(self) -> bool:
        """Whether it has bytes of which the client is still to send some."""
        return self.reserved > 0 and not self.is_complete

    @property
    def is_stalled(self) -> bool:
        """Whether the client has sent nothing worth the name for a while. Waiting for bytes is no stall."""
        return not self.is_waiting and time.monotonic() - self._progress_at >= STALLED_SECONDS

    def restart_clock(self) -> None:
        """Count the time without progress from now on."""
        self._progress_at = time.monotonic()


class BodyBudget:
    """Hands out the bytes. Used on the event loop alone."""

    def __init__(self, max_body_bytes: int) -> None:
        self.total = _TOTAL_BODIES * max_body_bytes
        self.for_tickets = _TICKET_BODIES * max_body_bytes
        self.small_reserve = int(_SMALL_SHARE * max_body_bytes)
        self._leases: dict[BodyLease, None] = {}
        self._changed = asyncio.Event()

    @property
    def used(self) -> int:
        """Bytes that are reserved now."""
        return sum(lease.reserved for lease in self._leases)

    def open_lease(self, *, is_ticket: bool, interrupt: Callable[[], None]) -> BodyLease:
        """Register a body. `interrupt` ends the wait of its reader if it is displaced."""
        lease = BodyLease(is_ticket=is_ticket, interrupt=interrupt)
        self._leases[lease] = None
        return lease

    def close_lease(self, lease: BodyLease) -> None:
        """Return the bytes of a body."""
        self._leases.pop(lease, None)
        self._wake()

    async def reserve(self, lease: BodyLease, size: int) -> None:
        """Reserve `size` bytes more, and wait until there are as many.

        Raises `RequestError` (429) if all bodies wait for one another.
        """
        lease.is_waiting = True
        try:
            while not self._fits(lease, size):
                if self._displace_one(lease):
                    continue
                if all(other.is_waiting for other in self._leases) and lease.reserved:
                    raise RequestError(
                        "too many large bodies are on their way. Send this one again in a moment.",
                        code="too_many_bodies",
                        status=429,
                    )
                await self._wait_changed()
        finally:
            lease.is_waiting = False
            lease.restart_clock()
        lease.reserved += size

    async def _wait_changed(self) -> None:
        """Wait until bytes were returned, or a body may have stalled."""
        self._changed.clear()
        try:
            async with asyncio.timeout(STALLED_SECONDS / 10):
                await self._changed.wait()
        except TimeoutError:
            return

    def _fits(self, lease: BodyLease, size: int) -> bool:
        wanted = lease.reserved + size
        others = [other for other in self._leases if other is not lease and other.reserved]
        limit = self.total if wanted <= SMALL_BODY_BYTES else self.total - self.small_reserve
        if _over(others, wanted, limit):
            return False
        if not lease.is_ticket:
            return True
        return not _over([other for other in others if other.is_ticket], wanted, self.for_tickets)

    def _displace_one(self, lease: BodyLease) -> bool:
        """Take the bytes of one other body. Return False if none gives way."""
        candidates = self._displaceable(lease)
        if not candidates:
            return False
        largest = max(candidates, key=lambda other: other.reserved)
        self._leases.pop(largest)
        largest.is_displaced = True
        largest.interrupt()
        return True

    def _displaceable(self, lease: BodyLease) -> list[BodyLease]:
        """Return the bodies that give way to a lease: stalled ones, else those of tickets to that of a key."""
        others = [other for other in self._leases if other is not lease and other.is_arriving]
        stalled = [other for other in others if other.is_stalled]
        if stalled or lease.is_ticket:
            return stalled
        return [other for other in others if other.is_ticket]

    def _wake(self) -> None:
        self._changed.set()


def _over(others: Sequence[BodyLease], wanted: int, limit: int) -> bool:
    """Return whether the bytes of other bodies leave too few. One alone may have as many as it needs."""
    return bool(others) and sum(other.reserved for other in others) + wanted > limit


def displaced_error(lease: BodyLease) -> RequestError:
    """Return the error for a body that gave way to another one."""
    if lease.is_stalled:
        return RequestError(
            f"no more of the body came for {STALLED_SECONDS:g} s while others waited. Send it again.",
            code="body_stalled",
            status=408,
        )
    return RequestError(
        "the body gave way to one with an owner's key. Send it again in a moment.",
        code="too_many_bodies",
        status=429,
    )
