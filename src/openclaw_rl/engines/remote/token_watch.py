"""Notices a server whose health path answers while none of its replies gets a token."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator

from openclaw_rl.types import Chunk


class TokenWatch:
    """Times for which replies have waited for the server. Time that a slow client takes does not count."""

    def __init__(self) -> None:
        # Reply -> monotonic seconds.
        self._waiting_since: dict[int, float] = {}
        # Of any reply, in monotonic seconds.
        self._last_chunk_at = float("-inf")

    async def watch_reply(self, chunks: AsyncGenerator[Chunk]) -> AsyncGenerator[Chunk]:
        """Yield the chunks of a reply, and note while it waits for one."""
        key = id(chunks)
        async with contextlib.aclosing(chunks):
            try:
                while True:
                    self._waiting_since[key] = time.monotonic()
                    try:
                        chunk = await anext(chunks)
                    except StopAsyncIteration:
                        return
                    del self._waiting_since[key]
                    self._last_chunk_at = time.monotonic()
                    yield chunk
            finally:
                self._waiting_since.pop(key, None)

    def silence(self) -> float:
        """Return the seconds for which a reply has waited while no reply got a token; 0 if none waits."""
        if not self._waiting_since:
            return 0.0
        return time.monotonic() - max(self._last_chunk_at, min(self._waiting_since.values()))
