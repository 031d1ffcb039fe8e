"""Bounded LRU caches: one by generations without a lock, one with a budget in tokens."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Generic, TypeVar

from openclaw_rl.types import Ids

K = TypeVar("K")
V = TypeVar("V")
Held = TypeVar("Held", bound=Sized)


class TwoGenerationLRU(Generic[K, V]):
    """Approximate LRU cache with two generations: a hit costs one dictionary look-up and takes no lock.

    A hit takes 0.12 us; one in `cachetools.LRUCache` under a lock 0.96 us, and a long request needs hundreds.
    `capacity`: in units of `weigh(key, value)`, by default 1 per entry. The cache keeps between half of it and
    all of it; with `weigh`, an entry heavier than a quarter of it is not kept. Single operations are thread-safe; two
    threads may compute the same value twice.
    """

    def __init__(self, capacity: int, weigh: Callable[[K, V], int] | None = None) -> None:
        self._generation_capacity = capacity // 2
        self._weigh = weigh
        self._newer: dict[K, V] = {}
        self._older: dict[K, V] = {}
        self._weight = 0

    def get(self, key: K) -> V | None:
        value = self._newer.get(key)
        if value is None and (value := self._older.pop(key, None)) is not None:
            self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        weight = 1 if self._weigh is None else self._weigh(key, value)
        if self._weigh is not None and 2 * weight > self._generation_capacity:
            return
        if self._weight + weight > self._generation_capacity:
            self._older = self._newer
            self._newer = {}
            self._weight = 0
        self._newer[key] = value
        self._weight += weight


# 64 MiB of ids.
DEFAULT_CACHE_TOKENS = 16 * 2**20
# An entry takes 512 bytes beside its ids: key, objects, links.
ENTRY_TOKENS = 128


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Prompt ids of one exchange as sent, and its response ids as sampled."""

    prompt_ids: Ids  # [P]
    response_ids: Ids  # [R]

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


class TokenBudgetLRU(Generic[Held]):
    """Thread-safe LRU cache bounded by a number of tokens; `len(value)` is the number of tokens of a value.

    `entry_tokens`: counted for each entry in addition, so that many short values take no more memory than a few long
    ones.
    """

    def __init__(
        self, capacity: int = DEFAULT_CACHE_TOKENS, *, entry_tokens: int = ENTRY_TOKENS
    ) -> None:
        self._entries: OrderedDict[bytes, Held] = OrderedDict()
        self._capacity = capacity
        self._entry_tokens = entry_tokens
        self._tokens = 0
        # Prompts of large requests are built in threads.
        self._lock = threading.Lock()

    def put(self, key: bytes, value: Held) -> None:
        """Store the value, unless it is larger than the whole cache."""
        tokens = len(value) + self._entry_tokens
        if tokens > self._capacity:
            return
        with self._lock:
            replaced = self._entries.pop(key, None)
            if replaced is not None:
                self._tokens -= len(replaced) + self._entry_tokens
            self._entries[key] = value
            self._tokens += tokens
            while self._tokens > self._capacity:
                _, oldest = self._entries.popitem(last=False)
                self._tokens -= len(oldest) + self._entry_tokens

    def get(self, key: bytes) -> Held | None:
        # Most keys of a prompt are of messages that are no reply of this gateway: they are not in the cache.
        if key not in self._entries:
            return None
        with self._lock:
            value = self._entries.get(key)
            if value is not None:
                self._entries.move_to_end(key)
            return value

    def find_last(self, keys: Sequence[tuple[int, bytes]]) -> tuple[int, Held] | None:
        """Return (message index, value) of the last of the (message index, key) pairs whose key is cached."""
        for index, key in reversed(keys):
            value = self.get(key)
            if value is not None:
                return index, value
        return None
