"""Cache of votes: the same question to the same judge is paid for once, also after a restart.

All votes on a question are kept together: sampled votes stay independent of one another. They lie in the store, and are
erased with the turn that the question was about.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.types import Vote


class VoteCache:
    """The newest `limit` questions to a judge, with their votes."""

    def __init__(self, store: Store, limit: int) -> None:
        self._store = store
        self._limit = limit

    async def find_votes(self, key: bytes) -> tuple[Vote, ...] | None:
        """Return the votes on a question. `key`: see `question_key`."""
        return await asyncio.to_thread(self._find_votes, key)

    async def add_votes(self, key: bytes, turn: str, votes: Sequence[Vote]) -> None:
        """Keep the votes on a question about this turn. Nothing is kept of a turn that was erased in the meantime."""
        await asyncio.to_thread(self._add_votes, key, turn, votes)

    def _find_votes(self, key: bytes) -> tuple[Vote, ...] | None:
        with self._store.read() as conn:
            return turns.cached_votes(conn, key)

    def _add_votes(self, key: bytes, turn: str, votes: Sequence[Vote]) -> None:
        with self._store.write(durable=False) as conn:
            turns.cache_votes(conn, key, turn, votes, limit=self._limit)


def question_key(*parts: Any) -> bytes:
    """Return the hash [16 bytes] of what decides an answer: judge, prompt version, sampling, votes, messages."""
    raw = json.dumps(parts, ensure_ascii=False, sort_keys=True).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(raw, digest_size=16).digest()
