"""The batches of an undo as the training loop takes them: before the queue, with exactly the turns of that time.

Staleness in versions, the sizes of a batch and `max_uses` do not apply to them. The current verdicts count. Turns that
cannot be trained on now are left out; they stay in the store as they are, so that the queue decides on them.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection

from openclaw_rl.protocols import Batch, PolicyWork, Waiting
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import retraining
from openclaw_rl.store.lineage.trained_turns import used_by_lineage

RETRAINED_METRIC = "retrained"


class UndoSource:
    """The next batch of the undo that is in progress."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def next_batch(self, policy: PolicyWork) -> Batch | Waiting | None:
        """Return the batch, without turns if none of them can be trained on now; None if no undo is in progress."""
        head = policy.head
        with self._store.read() as conn:
            repeated = retraining.first_batch(conn, head.name)
            if repeated is None:
                return None
            trained = used_by_lineage(conn, head.version, repeated.turns)
            return Batch(
                head=head,
                turns=retraining.repeatable_turns(conn, repeated.turns),
                is_fixed=True,
                undo=repeated,
                undo_left=retraining.count_batches(conn, head.name),
                replays=frozenset(trained),
            )


def end_batch(conn: Connection, batch: Batch) -> None:
    """Remove the batch, which has a result or gives none, from the undo that it belongs to, if any."""
    if batch.undo is not None:
        retraining.remove_batch(conn, batch.undo.place)


def end_fatal_batch(conn: Connection, name: str, turns: Collection[str]) -> None:
    """Remove a policy's next batch if it is the one on which trainers died. `turns`: those that they worked on."""
    repeated = retraining.first_batch(conn, name)
    if repeated is not None and set(turns) <= set(repeated.turns):
        retraining.remove_batch(conn, repeated.place)
