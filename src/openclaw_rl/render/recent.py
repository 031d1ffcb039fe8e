"""A bounded cache: what was not asked for since the last two turnovers is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Least recently used out, by halves: a hit costs one dictionary look-up, and there is no lock.

    `room` is in units of `weigh(key, value)` (1 each by default); between half of it and all of it is kept. Single
    operations are safe from several threads; two threads may compute the same value.
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
