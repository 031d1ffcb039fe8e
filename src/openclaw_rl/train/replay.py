"""Replay: turns that the head's lineage was trained on are added to a batch of new turns.

The log-probabilities of the policy, the base and the teachers are computed again. Only those at sampling time are
reused, so the importance ratio to them measures how stale a replay is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from openclaw_rl.methods.types import Sample
from openclaw_rl.settings.load import TrainConfig
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, training_queue
from openclaw_rl.store.lineage.policy_names import PolicyOwner, owner_filter
from openclaw_rl.train.sample_builder import SampleBuilder, oldest_version
from openclaw_rl.types import JudgedTurn, Policy

# Remembered unusable turns; a forgotten one costs another forward pass.
MAX_UNFIT_TURNS = 256


def replay_limit(fresh: int, *, share: float, most: int) -> int:
    """Return how many replays to add to `fresh` turns: at most `share` (below 1) of a batch of at most `most` turns."""
    return max(0, min(most - fresh, math.floor(fresh * share / (1 - share) + 1e-9)))


class ReplaySelector:
    """Selects the newest used turns, which are the least stale. Unusable turns are skipped and keep their uses.

    They had a gradient before, so they are never marked untrainable. On another lineage they may be new again.
    """

    def __init__(
        self, store: Store, builder: SampleBuilder, train: TrainConfig, per: PolicyOwner = "all"
    ) -> None:
        self._store = store
        self._builder = builder
        self._train = train
        self._per = per
        self._unfit: deque[str] = deque(maxlen=MAX_UNFIT_TURNS)
        self._excluded: set[str] = set()

    def select_replays(self, head: Policy, fresh: int) -> tuple[list[JudgedTurn], list[Sample]]:
        """Return the turns to add to `fresh` new ones, and the samples of the usable ones."""
        limit = replay_limit(
            fresh, share=self._train.batch.replay_ratio, most=self._train.batch.max_step_turns
        )
        signal = self._builder.signal
        # Groups are trained on once, whole.
        if self._train.batch.max_uses < 2 or limit == 0 or signal.uses_episodes:
            return [], []
        with self._store.read() as conn:
            items = training_queue.replay_turns(
                conn,
                limit=limit,
                max_uses=self._train.batch.max_uses,
                need_score=signal.uses_reward,
                need_hint=signal.uses_hints,
                skip={*self._unfit, *self._excluded},
                owner=owner_filter(self._per, head.name),
            )
            lineage = policies.lineage(conn, head.version, above=oldest_version(items))
        batch = self._builder.build_batch(
            items, head, lineage, replays={item.turn.id for item in items}
        )
        self.mark_unfit(batch.dropped)
        return items, batch.samples

    def mark_unfit(self, turns: Iterable[str]) -> None:
        """Skip these turns from now on: they are unusable on this lineage."""
        self._unfit.extend(turn for turn in turns if turn not in self._unfit)

    def exclude_turn(self, turn: str) -> None:
        """Never select this turn again: it is too long for this device on any lineage."""
        self._excluded.add(turn)

    def forget_unfit(self) -> None:
        """Forget which turns are unusable, because the trainer has loaded another version."""
        self._unfit.clear()
