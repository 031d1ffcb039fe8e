"""A session as far as it has been made: what a turn shares with the turn before it is not worked out again."""

from __future__ import annotations

from bisect import bisect_left
from itertools import compress, count
from operator import is_not
from typing import Any

from openclaw_rl import canon
from openclaw_rl.canon import Transience
from openclaw_rl.render.growing import LONG, Growing
from openclaw_rl.store.codec import to_json
from openclaw_rl.trajectories.plan import Planned
from openclaw_rl.types import Mark


class Telling:
    """Turns in their order. Short ones, as those of side traffic, are worked out alone."""

    def __init__(self, growing: Growing, *, key: bytes, transient: Transience) -> None:
        self.growing, self._key, self._transient = growing, key, transient
        self._before: Planned | None = None
        self._marks: tuple[Mark, ...] = ()

    def marks(self, planned: Planned) -> tuple[Mark, ...]:
        """Of the turn's messages; what does not go on from the turn before is no longer kept in `growing`.

        Raises `Unequal`.
        """
        if len(planned.messages) < LONG:
            return canon.marks(planned.messages, self._key, self._transient)
        same = 0 if self._before is None else _same(self._before, planned)
        self.growing.hold(same)
        known = self._marks[: bisect_left(self._marks, same, key=lambda m: m.index)]
        self._before = planned
        self._marks = canon.marks(planned.messages, self._key, self._transient, known=known, upto=same)
        return self._marks


def _same(a: Planned, b: Planned) -> int:
    """How many messages they begin with alike; none where tools or the template's variables differ."""
    if not _alike((a.turn.tools, a.turn.template), (b.turn.tools, b.turn.template)):
        return 0
    size = min(len(a.messages), len(b.messages))
    n = next(compress(count(), map(is_not, a.messages, b.messages)), size)  # words: the very same ones
    return next((at for at in range(n, size) if not _alike(a.messages[at], b.messages[at])), size)


def _alike(a: Any, b: Any) -> bool:
    """To the byte: for `==` 1 is 1.0 and True."""
    return to_json(a) == to_json(b)
