"""What was sampled, in memory: by the chain of a whole history its ids, by the chain of a reply that reply's."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Generic, TypeVar

from openclaw_rl.types import Ids

ROOM_TOKENS = 16 * 2**20  # 64 MiB of ids

V = TypeVar("V", bound=Sized)


@dataclass(frozen=True, slots=True)
class Past:
    """The ids of one exchange, as sent and as sampled."""

    prompt_ids: Ids  # [P]
    response_ids: Ids  # [R]

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


class ByTokens(Generic[V]):
    """Least recently used out, bounded in tokens: the length of a value is how many it holds."""

    def __init__(self, room: int = ROOM_TOKENS) -> None:
        self._room = room
        self._held: OrderedDict[bytes, V] = OrderedDict()

    def put(self, key: bytes, value: V) -> None:
        if (old := self._held.pop(key, None)) is not None:
            self._room += len(old)
        self._held[key] = value
        self._room -= len(value)
        while self._room < 0 and self._held:
            self._room += len(self._held.popitem(last=False)[1])

    def get(self, key: bytes) -> V | None:
        if (found := self._held.get(key)) is not None:
            self._held.move_to_end(key)
        return found

    def longest(self, keys: Sequence[tuple[int, bytes]]) -> tuple[int, V] | None:
        """The last of (message index, key) that is known, searched from the end."""
        for index, key in reversed(keys):
            if (found := self.get(key)) is not None:
                return index, found
        return None
