"""Keys and values of finished replies, kept for the next turn of their conversation; one policy's never serve another.

Found by a chain of hashes over blocks of ids, then compared id by id, so a hit is exact. Bounded in tokens; the one
that was not used for longest goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from openclaw_rl.types import Ids

BLOCK = 16


@dataclass(slots=True, eq=False)
class Entry:
    key: Hashable
    ids: Ids
    states: Tensor  # [L, 2, H, len(ids), D]
    chain: list[int]  # hash up to each full block


class PrefixCache:
    def __init__(self, tokens: int) -> None:
        self.limit = tokens
        self.tokens = 0
        self._entries: OrderedDict[int, Entry] = OrderedDict()  # by id(entry), least recently used first
        self._by_hash: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def wants(self, length: int) -> bool:
        """Whether a sequence of this length would be kept."""
        return BLOCK <= length <= self.limit

    def find(self, key: Hashable, ids: Ids) -> tuple[int, Tensor] | None:
        """The longest known start of `ids`, less its last token: how many tokens, and their states (a view)."""
        best: Entry | None = None
        for value in _chain(key, ids[:-1]):
            if (entry := self._by_hash.get(value)) is None:
                break
            best = entry
        if best is None or best.key != key:
            return None
        self._use(best)
        most = min(len(best.ids), len(ids) - 1)
        differs = np.flatnonzero(best.ids[:most] != ids[:most])
        length = int(differs[0]) if len(differs) else most
        return (length, best.states[:, :, :, :length]) if length else None

    def add(self, key: Hashable, ids: Ids, states: Tensor) -> None:
        """Keep a finished sequence; one that it continues is let go."""
        chain = list(_chain(key, ids))
        for value in chain[::-1]:
            older = self._by_hash.get(value)
            if older is not None and len(older.ids) <= len(ids) and np.array_equal(older.ids, ids[: len(older.ids)]):
                self._drop(older)
                break
        entry = Entry(key, ids, states, chain)
        self._entries[id(entry)] = entry
        self._use(entry)
        self.tokens += len(ids)
        while self.tokens > self.limit:
            self._drop(next(iter(self._entries.values())))

    def forget(self, key: Hashable) -> None:
        """Let go of everything of one policy."""
        for entry in [e for e in self._entries.values() if e.key == key]:
            self._drop(entry)

    def _use(self, entry: Entry) -> None:
        # A start that several share belongs to the one used last: so dropping the oldest cuts no other's chain.
        self._entries.move_to_end(id(entry))
        self._by_hash.update(dict.fromkeys(entry.chain, entry))

    def _drop(self, entry: Entry) -> None:
        del self._entries[id(entry)]
        self.tokens -= len(entry.ids)
        for value in entry.chain:
            if self._by_hash.get(value) is entry:
                del self._by_hash[value]


def _chain(key: Hashable, ids: Ids) -> Iterator[int]:
    value = hash(key)
    for start in range(0, len(ids) - BLOCK + 1, BLOCK):
        value = hash((value, ids[start : start + BLOCK].tobytes()))
        yield value
