"""A stream that is silent for long is spoken for: proxies and clients close connections that are idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

SILENCE = 15.0
"""Seconds without a write after which something is sent. Proxies and SDKs wait for 60 seconds and more."""
FIRST_SILENCE = 0.5
"""Seconds after which a stream begins without a token, once the engine has its prompt."""


class KeepAlive:
    """Calls `speak` after each `SILENCE` without a call of `note_write`.

    The first time it does so after `FIRST_SILENCE`, as soon as `may_begin` is true, too. Until then an error can be an
    HTTP error, and most errors of an engine come at once.
    """

    def __init__(
        self,
        speak: Callable[[], Awaitable[None]],
        *,
        may_speak: Callable[[], bool] = lambda: True,
        may_begin: Callable[[], bool] = lambda: False,
    ) -> None:
        self._speak = speak
        self._may_speak = may_speak
        self._may_begin = may_begin
        self._has_begun = False
        self._loop = asyncio.get_running_loop()
        self._written_at = self._loop.time()

    def note_write(self) -> None:
        """Note that something is being written now."""
        self._has_begun = True
        self._written_at = self._loop.time()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Speak while the block runs; what `speak` raises ends the speaking alone."""
        task = asyncio.create_task(self._run(), name="keep-alive")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        await self._begin()
        while True:
            silent_until = self._written_at + SILENCE
            wait = silent_until - self._loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
                continue
            self.note_write()
            if self._may_speak():
                await self._speak()

    async def _begin(self) -> None:
        """Speak for the first time. Returns when something was written, or after `SILENCE`."""
        silent_until = self._written_at + SILENCE
        while not self._has_begun and self._loop.time() < silent_until:
            await asyncio.sleep(min(FIRST_SILENCE, SILENCE))
            if not self._has_begun and self._may_begin() and self._may_speak():
                self.note_write()
                await self._speak()
