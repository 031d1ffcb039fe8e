"""Lock for a server that holds one set of full weights at a time. It never refuses a reply.

Replies on the loaded weights run together. A reply that needs other weights waits until those have ended; then the
weights change. A reply that arrives while another waits for other weights waits too, so that none starves: each reply
waits for at most one change for each of the other weights ahead of it in the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

_T = TypeVar("_T")


class WeightLock:
    """Asynchronous lock on the loaded weights. `current`: their name, or None if unknown.

    `change(weights)` loads other weights into the server; all coroutines that wait for those raise what it raises.
    """

    def __init__(self, current: str | None, change: Callable[[str], Awaitable[None]]) -> None:
        self._current_weights = current
        self._change_weights = change
        self._running_count = 0
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._change_task: asyncio.Task[None] | None = None

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def hold_weights(self, weights: str) -> AsyncGenerator[None]:
        """Wait until these weights are loaded, and keep them for the block. Raises what `change` raised."""
        if self._waiting or self._change_task is not None or self._current_weights != weights:
            await self._wait_for_weights(weights)
        else:
            self._running_count += 1
        try:
            yield
        finally:
            self._running_count -= 1
            self._start_change_if_due()

    async def _wait_for_weights(self, weights: str) -> None:
        """Wait in line; on return, the caller counts as running."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((weights, future))
        self._start_change_if_due()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                # It was admitted in the same iteration of the event loop.
                self._running_count -= 1
            self._waiting = [entry for entry in self._waiting if entry[1] is not future]
            self._start_change_if_due()
            raise

    def _start_change_if_due(self) -> None:
        if self._waiting and not self._running_count and self._change_task is None:
            self._change_task = asyncio.get_running_loop().create_task(
                self._run_change(self._waiting[0][0])
            )

    async def _run_change(self, weights: str) -> None:
        failure: Exception | None = None
        try:
            if weights != self._current_weights:
                await self._change_weights(weights)
        except Exception as error:  # noqa: BLE001 - the waiting coroutines raise it
            failure = error
        # A failed change leaves the weights undefined.
        self._change_task = None
        self._current_weights = weights if failure is None else None
        for future in self._remove_waiting(weights):
            if failure is not None:
                future.set_exception(failure)
                continue
            self._running_count += 1
            future.set_result(None)
        self._start_change_if_due()

    def _remove_waiting(self, weights: str) -> list[asyncio.Future[None]]:
        """Take those that wait for these weights out of the line; return the futures that are not done."""
        futures = [future for wanted, future in self._waiting if wanted == weights]
        self._waiting = [entry for entry in self._waiting if entry[0] != weights]
        return [future for future in futures if not future.done()]

    def close(self, error: Exception) -> None:
        """Raise `error` in all waiting coroutines and cancel a running change."""
        if self._change_task is not None:
            self._change_task.cancel()
        waiting = self._waiting
        self._waiting = []
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)


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
