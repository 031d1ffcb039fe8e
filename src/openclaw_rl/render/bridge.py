"""Which exchange does a history continue? An index in memory from the chain over all messages to the stored ids."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.types import Ids

ROOM_TOKENS = 16 * 2**20  # 64 MiB of ids


@dataclass(frozen=True, slots=True)
class Past:
    """The ids of one exchange, as sent and as sampled."""

    prompt_ids: Ids  # [P]
    response_ids: Ids  # [R]

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


class Bridges:
    """Least recently used out, bounded in tokens. A key is the chain over scope, tools and every message."""

    def __init__(self, room: int = ROOM_TOKENS) -> None:
        self._room = room
        self._held: OrderedDict[bytes, Past] = OrderedDict()

    def put(self, key: bytes, past: Past) -> None:
        if (old := self._held.pop(key, None)) is not None:
            self._room += len(old)
        self._held[key] = past
        self._room -= len(past)
        while self._room < 0 and self._held:
            self._room += len(self._held.popitem(last=False)[1])

    def get(self, key: bytes) -> Past | None:
        if (found := self._held.get(key)) is not None:
            self._held.move_to_end(key)
        return found

    def longest(self, keys: Sequence[tuple[int, bytes]]) -> tuple[int, Past] | None:
        """The last of (message index, key) that is known, searched from the end."""
        for index, key in reversed(keys):
            if (past := self.get(key)) is not None:
                return index, past
        return None
