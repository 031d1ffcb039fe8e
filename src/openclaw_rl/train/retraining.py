"""The batches of an undo as the training loop takes them: before the queue, with exactly the turns of that time.

Staleness in versions, the sizes of a batch and `max_uses` do not apply to them. The current verdicts count. Turns that
cannot be trained on now are left out; they stay in the store as they are, so that the queue decides on them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from sqlalchemy import Connection

from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import retraining
from openclaw_rl.store.lineage.retraining import RepeatedBatch
from openclaw_rl.store.lineage.trained_turns import turns_of_lineage
from openclaw_rl.types import JudgedTurn, Policy

log = logging.getLogger("openclaw_rl.train")
RETRAINED_METRIC = "retrained"


class RetrainingLedger:
    """Reads the next batch of the undo that is in progress, and removes it in the transaction of its result."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._batch: RepeatedBatch | None = None
        # Turns of the batch that the head's lineage used.
        self.replays: frozenset[str] = frozenset()
        self._left = 0

    @property
    def is_active(self) -> bool:
        """Whether the loop works on a batch of an undo."""
        return self._batch is not None

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics that mark the step."""
        return {RETRAINED_METRIC: 1.0} if self.is_active else {}

    @property
    def note(self) -> str:
        """Text for the status note: that the step belongs to an undo."""
        return f"; undo: {self._left} left" if self.is_active else ""

    def next_turns(self, conn: Connection, head: Policy) -> Sequence[JudgedTurn]:
        """Return the turns of the policy's next batch in its order; empty if none can train. Raises `DamagedRow`."""
        self._batch = retraining.first_batch(conn, head.name)
        self.replays = frozenset()
        if self._batch is None:
            return []
        self._left = retraining.count_batches(conn, head.name)
        items = retraining.repeatable_turns(conn, self._batch.turns)
        used = {row.turn for row in turns_of_lineage(conn, head.version)}
        self.replays = frozenset(used.intersection(self._batch.turns))
        return items

    def end_batch(self, conn: Connection) -> None:
        """Remove the batch, which has a result or none, if the loop works on one."""
        if self._batch is not None:
            retraining.remove_batch(conn, self._batch.seq)

    def skip_batch(self) -> bool:
        """Remove a batch that gives no step. Return False if the loop works on none."""
        if self._batch is None:
            return False
        log.warning("undo: the batch of version %d gives no step now", self._batch.repeats)
        with self._store.write() as conn:
            self.end_batch(conn)
        return True

    def end_fatal_batch(self, conn: Connection, name: str, turns: Collection[str]) -> None:
        """Remove a policy's next batch if it is the one on which trainers died. `turns`: those that they worked on."""
        batch = retraining.first_batch(conn, name)
        if batch is not None and set(turns) <= set(batch.turns):
            retraining.remove_batch(conn, batch.seq)
