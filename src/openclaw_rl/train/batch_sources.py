"""The sources of batches, in the order in which the training loop asks them (`protocols.BatchSource`)."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.common.progress import Wait, WorkNote
from openclaw_rl.methods.types import CreditMethod
from openclaw_rl.protocols import Batch, BatchSource, PolicyWork, Waiting
from openclaw_rl.settings.load import TrainConfig
from openclaw_rl.store.lineage.policy_names import owner_filter
from openclaw_rl.train.batch_bisection import BisectionSource
from openclaw_rl.train.checkpoints import is_last_version
from openclaw_rl.train.context import TrainContext
from openclaw_rl.train.retraining import UndoSource
from openclaw_rl.train.satisfaction_watch import pause_reason
from openclaw_rl.train.turn_queue import BatchReadiness, QueuedTurns, QueueSource


class PauseSource:
    """No batch while training is frozen, or settles after an automatic rollback."""

    def __init__(self, context: TrainContext, *, settles: bool) -> None:
        """`settles`: whether steps wait after an automatic rollback."""
        self._context = context
        self._settles = settles

    def next_batch(self, policy: PolicyWork) -> Batch | Waiting | None:
        """Return why no step may be taken; None if it may."""
        context = self._context
        with context.store.read() as conn:
            note = pause_reason(
                conn,
                policy.head,
                context.clock(),
                settles=self._settles,
                owner=owner_filter(context.per, policy.head.name),
            )
        return None if note is None else Waiting(note=note)


class LastVersionSource:
    """No batch of new turns after `train.max_steps`."""

    def __init__(self, settings: TrainConfig) -> None:
        self._settings = settings

    def next_batch(self, policy: PolicyWork) -> Batch | Waiting | None:
        """Return why no further version is trained; None if one may be."""
        if not is_last_version(policy.head, self._settings):
            return None
        limit = f"train.max_steps {self._settings.max_steps}"
        details = f"{limit} is reached: version {policy.head.version} is the last"
        return Waiting(note=WorkNote(details, frozenset({Wait.MAX_STEPS})))


def make_sources(
    context: TrainContext,
    method: CreditMethod,
    readiness: BatchReadiness,
    candidates: BatchSource,
    *,
    settles: bool,
) -> Sequence[BatchSource]:
    """Return the sources that each policy is asked for, before it may practise. `candidates`: examines them."""
    queued = QueuedTurns(context, method)
    return (
        PauseSource(context, settles=settles),
        candidates,
        UndoSource(context.store),
        LastVersionSource(context.settings),
        BisectionSource(context, queued),
        QueueSource(context, queued, readiness),
    )
