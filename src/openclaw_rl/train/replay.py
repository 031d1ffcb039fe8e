"""Replay: turns that the head's line was trained on join a batch of fresh ones, once more.

What they are worth is computed anew: the policy's log-probabilities, the base's and the teachers'. Only the sampled
ones stay, so that the ratio to them says how stale a replay is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable

from openclaw_rl.methods.types import Sample
from openclaw_rl.settings.load import TrainConfig
from openclaw_rl.store import policies
from openclaw_rl.store.db import Store
from openclaw_rl.train.sample_builder import Builder
from openclaw_rl.types import JudgedTurn, Policy

REMEMBERED = (
    256  # turns that were no good as replays: beyond that the oldest are tried again, which costs a forward pass
)


def room_for(fresh: int, *, share: float, most: int) -> int:
    """How many replays join `fresh` turns: at most this share (below 1) of a batch of at most `most` turns."""
    return max(0, min(most - fresh, math.floor(fresh * share / (1 - share) + 1e-9)))


class Replays:
    """The newest used turns, which are the least stale. Those that do not fit are passed over, and keep their uses.

    They carried a gradient once, so they are never marked as untrainable; on another line they may be fresh again.
    """

    def __init__(self, store: Store, builder: Builder, train: TrainConfig) -> None:
        self._store, self._builder, self._train = store, builder, train
        self._unfit: deque[str] = deque(maxlen=REMEMBERED)
        self._never: set[str] = set()

    def claim(self, head: Policy, line: Collection[int], fresh: int) -> tuple[list[JudgedTurn], list[Sample]]:
        """What joins `fresh` turns on top of `head` and its `line`: the turns, and the samples of those that fit."""
        limit = room_for(fresh, share=self._train.replay, most=self._train.most)
        if self._train.max_uses < 2 or limit == 0:
            return [], []
        signal = self._builder.signal
        with self._store.read() as conn:
            items = policies.replayable(
                conn,
                head=head.version,
                limit=limit,
                max_uses=self._train.max_uses,
                need_score=signal.uses_reward,
                need_hint=signal.uses_hints,
                skip={*self._unfit, *self._never},
            )
        batch = self._builder.build(items, head, line, replay=True)
        self.pass_over(batch.dropped)
        return items, batch.samples

    def pass_over(self, turns: Iterable[str]) -> None:
        """These turned out to be no good on this line."""
        self._unfit.extend(turn for turn in turns if turn not in self._unfit)

    def leave(self, turn: str) -> None:
        """It is too long for this device, on whatever line."""
        self._never.add(turn)

    def forget(self) -> None:
        """The trainer stands on another line now."""
        self._unfit.clear()
