"""Queue for a server that holds one set of full weights at a time. It never refuses a reply.

Replies on the loaded weights run together. A reply that needs other weights waits until those have ended; then the
weights change. A reply that arrives while another waits for other weights waits too, so that none starves: each reply
waits for at most as many changes as there are other weights ahead of it in the queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

_T = TypeVar("_T")


class WeightQueue:
    """State of the queue, without clocks or tasks. `current`: name of the loaded weights; None: unknown."""

    def __init__(self, current: str | None) -> None:
        self.current_weights = current
        self.running_count = 0
        self.changing_to: str | None = None
        self._waiting_tickets: deque[tuple[int, str]] = deque()

    @property
    def waiting_count(self) -> int:
        return len(self._waiting_tickets)

    def try_enter(self, ticket: int, weights: str) -> bool:
        """Return True if the reply may run at once; otherwise append it to the queue."""
        if not self._waiting_tickets and self.changing_to is None and self.current_weights == weights:
            self.running_count += 1
            return True
        self._waiting_tickets.append((ticket, weights))
        return False

    def cancel_ticket(self, ticket: int) -> None:
        """Remove a waiting reply from the queue."""
        self._waiting_tickets = deque(entry for entry in self._waiting_tickets if entry[0] != ticket)

    def end_run(self) -> None:
        """Count a running reply as ended."""
        self.running_count -= 1

    def start_due_change(self) -> str | None:
        """Start a change if one is due; return the weights to load, or None."""
        if self.running_count or self.changing_to is not None or not self._waiting_tickets:
            return None
        self.changing_to = self._waiting_tickets[0][1]
        return self.changing_to

    def finish_change(self, *, done: bool) -> list[int]:
        """End the change; return the tickets that waited for it, in order. If `done`, they now count as running."""
        assert self.changing_to is not None
        weights, self.changing_to = self.changing_to, None
        self.current_weights = weights if done else None  # a failed change leaves the weights undefined
        taken = [ticket for ticket, wanted in self._waiting_tickets if wanted == weights]
        self._waiting_tickets = deque(entry for entry in self._waiting_tickets if entry[1] != weights)
        self.running_count += len(taken) if done else 0
        return taken


class WeightLock:
    """Asynchronous lock over `WeightQueue`. `change(weights)` loads other weights into the server; all coroutines that
    wait for those weights raise what it raises.
    """

    def __init__(self, current: str | None, change: Callable[[str], Awaitable[None]]) -> None:
        self._queue, self._change_weights = WeightQueue(current), change
        self._futures: dict[int, asyncio.Future[None]] = {}
        self._last_ticket = 0
        self._change_task: asyncio.Task[None] | None = None

    @property
    def waiting_count(self) -> int:
        return self._queue.waiting_count

    async def acquire_weights(self, weights: str) -> None:
        """Wait until these weights are loaded and keep them until the release. Raises what `change` raised."""
        self._last_ticket += 1
        ticket = self._last_ticket
        if self._queue.try_enter(ticket, weights):
            return
        turn = self._futures[ticket] = asyncio.get_running_loop().create_future()
        self._start_change_if_due()
        try:
            await turn
        except asyncio.CancelledError:
            self._abandon_ticket(ticket, turn)
            raise
        finally:
            self._futures.pop(ticket, None)

    def release_weights(self) -> None:
        """Release the weights, once for each acquisition."""
        self._queue.end_run()
        self._start_change_if_due()

    def _abandon_ticket(self, ticket: int, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self._queue.end_run()  # it was admitted in the same iteration of the event loop
        self._queue.cancel_ticket(ticket)
        self._start_change_if_due()

    def _start_change_if_due(self) -> None:
        if (weights := self._queue.start_due_change()) is not None:
            self._change_task = asyncio.get_running_loop().create_task(self._run_change(weights))

    async def _run_change(self, weights: str) -> None:
        failure: Exception | None = None
        try:
            if weights != self._queue.current_weights:
                await self._change_weights(weights)
        except Exception as error:  # noqa: BLE001 - the waiting coroutines raise it
            failure = error
        for ticket in self._queue.finish_change(done=failure is None):
            turn = self._futures.get(ticket)
            if turn is None or turn.done():
                if failure is None:
                    self._queue.end_run()  # it was cancelled during the change
            elif failure is None:
                turn.set_result(None)
            else:
                turn.set_exception(failure)
        self._start_change_if_due()

    def close(self, error: Exception) -> None:
        """Raise `error` in all waiting coroutines and cancel a running change."""
        if self._change_task is not None:
            self._change_task.cancel()
        for turn in self._futures.values():
            if not turn.done():
                turn.set_exception(error)


async def read_ahead(source: AsyncGenerator[_T]) -> AsyncGenerator[_T]:
    """Yield the items of `source`, buffered without a bound, so that a slow reader does not delay it."""
    items: asyncio.Queue[tuple[_T | None, Exception | None]] = asyncio.Queue()

    async def read_source() -> None:
        try:
            async for item in source:
                items.put_nowait((item, None))
            items.put_nowait((None, None))
        except Exception as error:  # noqa: BLE001 - raised again in the reader
            items.put_nowait((None, error))
        finally:
            await source.aclose()

    task = asyncio.get_running_loop().create_task(read_source())
    try:
        while True:
            item, error = await items.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
