"""Whose turn it is on a server that holds one set of full weights at a time: a queue that never refuses.

Replies on the present weights run together. One that needs others waits until those have ended; then the weights
change. Who comes while somebody waits for other weights waits too, so nobody starves: a place in the queue is passed by
at most as many changes as other weights wait before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

_T = TypeVar("_T")


class Shift:
    """The queue itself, without any clock or task. Weights are named by strings; `current` None: not known."""

    def __init__(self, current: str | None) -> None:
        self.current = current
        self.running = 0
        self.changing: str | None = None
        self._queue: deque[tuple[int, str]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def ask(self, ticket: int, weights: str) -> bool:
        """Whether it may go at once; else it stands in the queue."""
        if not self._queue and self.changing is None and self.current == weights:
            self.running += 1
            return True
        self._queue.append((ticket, weights))
        return False

    def leave(self, ticket: int) -> None:
        """It waits no longer."""
        self._queue = deque(entry for entry in self._queue if entry[0] != ticket)

    def done(self) -> None:
        """One that ran has ended."""
        self.running -= 1

    def due(self) -> str | None:
        """The weights to change to now, if any: from here on a change is under way."""
        if self.running or self.changing is not None or not self._queue:
            return None
        self.changing = self._queue[0][1]
        return self.changing

    def changed(self, *, done: bool) -> list[int]:
        """The change has ended. The tickets that waited for it, in order: they run now, or have failed."""
        assert self.changing is not None
        weights, self.changing = self.changing, None
        self.current = weights if done else None  # half-changed weights are nobody's
        taken = [ticket for ticket, wanted in self._queue if wanted == weights]
        self._queue = deque(entry for entry in self._queue if entry[1] != weights)
        self.running += len(taken) if done else 0
        return taken


class Turnstile:
    """`Shift` for coroutines. `change(weights)` puts other weights into the server; what it raises, all get who wait
    for them.
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
        """Wait until the server holds these weights, and hold it to them until `leave`. Raises what `change` raised."""
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
        """One that had entered has ended."""
        self._shift.done()
        self._step()

    def _gave_up(self, ticket: int, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self._shift.done()  # its turn had come in the same moment
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
        except Exception as error:  # noqa: BLE001 - whatever it was, those who wait must hear of it
            failure = error
        for ticket in self._shift.changed(done=failure is None):
            turn = self._waiting.get(ticket)
            if turn is None or turn.done():
                if failure is None:
                    self._shift.done()  # it went away meanwhile
            elif failure is None:
                turn.set_result(None)
            else:
                turn.set_exception(failure)
        self._step()

    def close(self, error: Exception) -> None:
        """Fail all who wait, and change nothing any more."""
        if self._task is not None:
            self._task.cancel()
        for turn in self._waiting.values():
            if not turn.done():
                turn.set_exception(error)


async def read_ahead(source: AsyncGenerator[_T]) -> AsyncGenerator[_T]:
    """The same items, taken from `source` as they come: a slow reader does not hold it up."""
    items: asyncio.Queue[tuple[_T | None, Exception | None]] = asyncio.Queue()

    async def read() -> None:
        try:
            async for item in source:
                items.put_nowait((item, None))
            items.put_nowait((None, None))
        except Exception as error:  # noqa: BLE001 - it is raised where the items are read
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
