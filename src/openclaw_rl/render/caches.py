"""Bounded LRU caches: one by generations without a lock, one with a budget in tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Generic, TypeVar

from openclaw_rl.types import Ids

K = TypeVar("K")
V = TypeVar("V")
Held = TypeVar("Held", bound=Sized)


class Recent(Generic[K, V]):
    """Approximate LRU cache with two generations: a hit costs one dictionary look-up and takes no lock.

    `room`: capacity in units of `weigh(key, value)`, by default 1 per entry. The cache keeps between half of it and
    all of it. Single operations are thread-safe; two threads may compute the same value twice.
    """

    def __init__(self, room: int, weigh: Callable[[K, V], int] | None = None) -> None:
        self._half = room // 2
        self._weigh = weigh
        self._new: dict[K, V] = {}
        self._old: dict[K, V] = {}
        self._weight = 0

    def get(self, key: K) -> V | None:
        value = self._new.get(key)
        if value is None and (value := self._old.pop(key, None)) is not None:
            self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        weight = 1 if self._weigh is None else self._weigh(key, value)
        if self._weight + weight > self._half:
            self._old, self._new, self._weight = self._new, {}, 0
        self._new[key] = value
        self._weight += weight


ROOM_TOKENS = 16 * 2**20  # 64 MiB of ids


@dataclass(frozen=True, slots=True)
class Past:
    """Prompt ids of one exchange as sent, and its response ids as sampled."""

    prompt_ids: Ids  # [P]
    response_ids: Ids  # [R]

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


class ByTokens(Generic[Held]):
    """LRU cache bounded by a number of tokens; `len(value)` is the number of tokens of a value."""

    def __init__(self, room: int = ROOM_TOKENS) -> None:
        self._room = room
        self._held: OrderedDict[bytes, Held] = OrderedDict()

    def put(self, key: bytes, value: Held) -> None:
        if (old := self._held.pop(key, None)) is not None:
            self._room += len(old)
        self._held[key] = value
        self._room -= len(value)
        while self._room < 0 and self._held:
            self._room += len(self._held.popitem(last=False)[1])

    def get(self, key: bytes) -> Held | None:
        if (found := self._held.get(key)) is not None:
            self._held.move_to_end(key)
        return found

    def longest(self, keys: Sequence[tuple[int, bytes]]) -> tuple[int, Held] | None:
        """Return (message index, value) of the last of the (message index, key) pairs whose key is cached."""
        for index, key in reversed(keys):
            if (found := self.get(key)) is not None:
                return index, found
        return None
