"""Batches of new turns: those of the queue, as soon as they are enough for a step."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from openclaw_rl.common.progress import Wait, WorkNote
from openclaw_rl.methods.types import CreditMethod
from openclaw_rl.protocols import Batch, PolicyWork, Waiting
from openclaw_rl.settings.load import TrainConfig
from openclaw_rl.store.lineage import training_queue
from openclaw_rl.store.lineage.policy_names import OwnerFilter, owner_filter
from openclaw_rl.store.trust.judge_trust import read_trust
from openclaw_rl.train.context import TrainContext
from openclaw_rl.types import JudgedTurn


class QueueAges:
    """Measures for how long a turn has been the first of its queue: a clock may have stamped it hours ahead."""

    def __init__(self) -> None:
        # By policy: the turn, and since when.
        self._first: dict[str, tuple[str, float]] = {}

    def seconds(self, policy: str, first: str, now: float) -> float:
        """Return the seconds since this turn was seen first. `now`: seconds by a clock that does not jump."""
        turn, since = self._first.get(policy, ("", now))
        if turn != first:
            since = now
            self._first[policy] = (first, since)
        return now - since


class BatchReadiness:
    """Decides whether turns are enough for a step, by their number or their groups, or by their age."""

    def __init__(self, context: TrainContext, method: CreditMethod) -> None:
        self._context = context
        self._method = method
        self._queue_ages = QueueAges()

    def is_ready(self, batch: Batch, turns: Sequence[JudgedTurn], usable: int) -> bool:
        """Return whether a step is taken on `turns`, of which `usable` can be trained on."""
        if usable == 0 or batch.is_fixed:
            return usable > 0
        if self._is_full(turns, usable):
            return True
        context = self._context
        first = turns[0].turn.id
        in_queue = self._queue_ages.seconds(batch.head.name, first, context.keeper.clock())
        since_verdict = context.clock() - min(item.verdict.at for item in turns)
        return max(since_verdict, in_queue) >= context.settings.batch.max_wait

    def describe(self, turns: Sequence[JudgedTurn]) -> str:
        """Return how much of a batch these turns are, as text."""
        batch = self._context.settings.batch
        if self._method.uses_episodes:
            return f"{_count_groups(turns)} of {batch.min_groups} groups"
        return f"{len(turns)} of {batch.min_step_turns}"

    def _is_full(self, turns: Sequence[JudgedTurn], usable: int) -> bool:
        batch = self._context.settings.batch
        if self._method.uses_episodes:
            return _count_groups(turns) >= batch.min_groups
        return usable >= batch.min_step_turns


class QueuedTurns:
    """The new turns of the policy that is asked about, read once for all sources."""

    def __init__(self, context: TrainContext, method: CreditMethod) -> None:
        self._context = context
        self._method = method
        self._policy: PolicyWork | None = None
        self._ids: list[str] = []

    def list_ids(self, policy: PolicyWork) -> list[str]:
        """Return `queued_ids` of the policy, as they were when it was first asked about in this iteration."""
        if self._policy is not policy:
            context = self._context
            owner = owner_filter(context.per, policy.head.name)
            with context.store.read() as conn:
                self._ids = queued_ids(conn, self._method, context.settings, owner)
            self._policy = policy
        return self._ids


class QueueSource:
    """The oldest new turns of a policy, or its oldest groups for a method that compares episodes."""

    def __init__(
        self, context: TrainContext, queued: QueuedTurns, readiness: BatchReadiness
    ) -> None:
        self._context = context
        self._queued = queued
        self._readiness = readiness

    def next_batch(self, policy: PolicyWork) -> Batch | Waiting | None:
        """Return the batch if it is complete, or waited for long enough; else how much of it is there."""
        context = self._context
        ids = self._queued.list_ids(policy)
        with context.store.read() as conn:
            turns = training_queue.load_judged_turns(conn, ids)
        batch = Batch(head=policy.head, turns=turns)
        if self._readiness.is_ready(batch, turns, len(turns)):
            return batch
        details = self._readiness.describe(turns)
        with context.store.read() as conn:
            untrusted = ", ".join(read_trust(conn).named)
        if untrusted:
            details += f"; verdicts of {untrusted} are not trained on (judge.min_kappa)"
        return Waiting(note=WorkNote(details, frozenset({Wait.TURNS})))


def queued_ids(
    conn: Connection,
    method: CreditMethod,
    settings: TrainConfig,
    owner: OwnerFilter | None,
) -> list[str]:
    """Return the ids of the new turns that the next step may be trained on, oldest first.

    For a method that compares episodes, they are the turns of whole groups.
    """
    max_uses = settings.batch.max_uses
    if method.uses_episodes:
        groups = training_queue.trainable_groups(
            conn,
            limit=settings.batch.max_groups,
            max_uses=max_uses,
            owner=owner,
        )
        return [turn for group in groups for turn in group]
    return training_queue.trainable_ids(
        conn,
        limit=settings.batch.max_step_turns,
        max_uses=max_uses,
        need_score=method.uses_reward,
        need_hint=method.uses_hints,
        owner=owner,
    )


def _count_groups(turns: Sequence[JudgedTurn]) -> int:
    return len({item.episode.group for item in turns if item.episode is not None})
