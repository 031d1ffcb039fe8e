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


class Shift:
    """State of the queue, without clocks or tasks. `current`: name of the loaded weights; None: unknown."""

    def __init__(self, current: str | None) -> None:
        self.current = current
        self.running = 0
        self.changing: str | None = None
        self._queue: deque[tuple[int, str]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def ask(self, ticket: int, weights: str) -> bool:
        """Return True if the reply may run at once; otherwise append it to the queue."""
        if not self._queue and self.changing is None and self.current == weights:
            self.running += 1
            return True
        self._queue.append((ticket, weights))
        return False

    def leave(self, ticket: int) -> None:
        """Remove a waiting reply from the queue."""
        self._queue = deque(entry for entry in self._queue if entry[0] != ticket)

    def done(self) -> None:
        """Count a running reply as ended."""
        self.running -= 1

    def due(self) -> str | None:
        """Start a change if one is due; return the weights to load, or None."""
        if self.running or self.changing is not None or not self._queue:
            return None
        self.changing = self._queue[0][1]
        return self.changing

    def changed(self, *, done: bool) -> list[int]:
        """End the change; return the tickets that waited for it, in order. If `done`, they now count as running."""
        assert self.changing is not None
        weights, self.changing = self.changing, None
        self.current = weights if done else None  # a failed change leaves the weights undefined
        taken = [ticket for ticket, wanted in self._queue if wanted == weights]
        self._queue = deque(entry for entry in self._queue if entry[1] != weights)
        self.running += len(taken) if done else 0
        return taken


class Turnstile:
    """Asynchronous lock over `WeightQueue`. `change(weights)` loads other weights into the server; all coroutines that
    wait for those weights raise what it raises.
    """

    def __init__(self, current: str | None, change: Callable[[str], Awaitable[None]]) -> None:
        self._shift, self._change = Shift(current), change
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._next = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        return self._shift.waiting

    async def enter(self, weights: str) -> None:
        """Wait until these weights are loaded and keep them until the release. Raises what `change` raised."""
        self._next += 1
        ticket = self._next
        if self._shift.ask(ticket, weights):
            return
        turn = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        self._step()
        try:
            await turn
        except asyncio.CancelledError:
            self._gave_up(ticket, turn)
            raise
        finally:
            self._waiting.pop(ticket, None)

    def leave(self) -> None:
        """Release the weights, once for each acquisition."""
        self._shift.done()
        self._step()

    def _gave_up(self, ticket: int, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self._shift.done()  # it was admitted in the same iteration of the event loop
        self._shift.leave(ticket)
        self._step()

    def _step(self) -> None:
        if (weights := self._shift.due()) is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(weights))

    async def _run(self, weights: str) -> None:
        failure: Exception | None = None
        try:
            if weights != self._shift.current:
                await self._change(weights)
        except Exception as error:  # noqa: BLE001 - the waiting coroutines raise it
            failure = error
        for ticket in self._shift.changed(done=failure is None):
            turn = self._waiting.get(ticket)
            if turn is None or turn.done():
                if failure is None:
                    self._shift.done()  # it was cancelled during the change
            elif failure is None:
                turn.set_result(None)
            else:
                turn.set_exception(failure)
        self._step()

    def close(self, error: Exception) -> None:
        """Raise `error` in all waiting coroutines and cancel a running change."""
        if self._task is not None:
            self._task.cancel()
        for turn in self._waiting.values():
            if not turn.done():
                turn.set_exception(error)


async def read_ahead(source: AsyncGenerator[_T]) -> AsyncGenerator[_T]:
    """Yield the items of `source`, buffered without a bound, so that a slow reader does not delay it."""
    items: asyncio.Queue[tuple[_T | None, Exception | None]] = asyncio.Queue()

    async def read() -> None:
        try:
            async for item in source:
                items.put_nowait((item, None))
            items.put_nowait((None, None))
        except Exception as error:  # noqa: BLE001 - raised again in the reader
            items.put_nowait((None, error))
        finally:
            await source.aclose()

    task = asyncio.get_running_loop().create_task(read())
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
