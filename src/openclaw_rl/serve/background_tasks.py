"""Work in progress: how many requests and replies there are, and what may outlive the request that began it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class RequestLoad:
    """How much the gateway has to do."""

    running_replies: int = 0
    """Replies in flight."""
    open_requests: int = 0
    """Requests for replies, from their authentication to the last byte that is sent."""


class BackgroundTasks:
    """Holds running tasks, which the event loop alone would not."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start the work."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self) -> None:
        """Wait for all of the work, also for what it begins."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
