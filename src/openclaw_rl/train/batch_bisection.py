"""Find the turn that makes a batch fail, by bisection.

A batch that is rejected, or that raises in the trainer, is recorded as a rejected version with its uses. Its new turns
are then tried in halves, without replays. Good turns train; a turn that fails alone leaves the queue with its reason.
The rejections are in the store, so a restarted trainer continues the bisection where it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from sqlalchemy import Connection

from openclaw_rl.errors import ModelError, PluginError
from openclaw_rl.methods.types import CreditMethod, Sample
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.load import TrainConfig
from openclaw_rl.store.lineage import policies, training_queue
from openclaw_rl.store.lineage.policy_names import OwnerFilter
from openclaw_rl.types import JudgedTurn, Policy, PolicyState

BATCH_ERRORS = (ValueError, ModelError, PluginError)
"""Exceptions that blame the batch. Any other exception is an error of the trainer itself, and ends the worker."""
MAX_CONSECUTIVE_FAILURES = 8
"""Consecutive turns, each tried alone, that may fail. After that the cause is probably not the turns."""


class QueueAges:
    """Measures for how long a turn has been the first of its queue: a clock may have stamped it hours ahead."""

    def __init__(self) -> None:
        # By policy: the turn, and since when.
        self._first: dict[str, tuple[str, float]] = {}

    def seconds(self, policy: str, first: str, now: float) -> float:
        """Return the seconds since this turn was seen first. `now`: seconds by a clock that does not jump."""
        turn, since = self._first.get(policy, ("", now))
        if turn != first:
            self._first[policy] = first, (since := now)
        return now - since


def next_batch(
    conn: Connection,
    head: Policy,
    signal: CreditMethod,
    train: TrainConfig,
    owner: OwnerFilter | None = None,
) -> tuple[list[JudgedTurn], bool]:
    """Return the next new turns to train on, and whether they are part of a failed batch that is being bisected.

    For a method that compares episodes, they are the turns of whole groups.
    """
    if signal.uses_episodes:
        limit = train.batch.max_groups
        uses = train.batch.max_uses
        groups = training_queue.trainable_groups(
            conn, head=head.version, limit=limit, max_uses=uses, owner=owner
        )
        items = [item for group in groups for item in group]
    else:
        items = training_queue.trainable_turns(
            conn,
            head=head.version,
            limit=train.batch.max_step_turns,
            max_uses=train.batch.max_uses,
            need_score=signal.uses_reward,
            need_hint=signal.uses_hints,
            owner=owner,
        )
    again = bisect(items, training_queue.last_rejections(conn, [i.turn.id for i in items]))
    return again or items, bool(again)


def is_full(
    items: Sequence[JudgedTurn], usable: int, signal: CreditMethod, train: TrainConfig
) -> bool:
    """Return whether these turns start a step: by the number `usable`, or by their groups of episodes."""
    if signal.uses_episodes:
        return _number_of_groups(items) >= train.batch.min_groups
    return usable >= train.batch.min_step_turns


def batch_note(items: Sequence[JudgedTurn], signal: CreditMethod, train: TrainConfig) -> str:
    """Return how much of a batch these turns are, as text."""
    if signal.uses_episodes:
        return f"{_number_of_groups(items)} of {train.batch.min_groups} groups"
    return f"{len(items)} of {train.batch.min_step_turns}"


def _number_of_groups(items: Sequence[JudgedTurn]) -> int:
    return len({item.episode.group for item in items if item.episode is not None})


def bisect(
    items: Sequence[JudgedTurn], rejections: Mapping[str, tuple[int, int]]
) -> list[JudgedTurn]:
    """Return at most half of the batch that the oldest rejected turn among `items` was in; empty if none was rejected.

    `rejections`: turn id -> (the last version that was rejected with it, number of turns of that version).
    """
    oldest = next((rejections[i.turn.id] for i in items if i.turn.id in rejections), None)
    if oldest is None:
        return []
    together = [i for i in items if rejections.get(i.turn.id) == oldest]
    return together[: max(1, oldest[1] // 2)]


def count_failed_alone(conn: Connection, versions: Sequence[Policy]) -> int:
    """Return how many of the newest versions were rejected because a single turn failed, up to the last other result.

    A batch of several turns that failed in between does not end the count. `versions`: all versions, oldest first.
    """
    failed = takewhile(_is_failed, reversed(versions))
    return sum(len(policies.uses_of_version(conn, policy.version)) == 1 for policy in failed)


def _is_failed(policy: Policy) -> bool:
    """Return whether the version was rejected because the trainer raised, or died."""
    return policy.state is PolicyState.REJECTED and policy.reason_code is ReasonCode.CANNOT_TRAIN


def failure_reason(cause: str) -> Reason:
    """Return why a batch on which the trainer raised, or died, gave no version. `cause`: as text."""
    return Reason(ReasonCode.CANNOT_TRAIN, f"it cannot be trained: {cause}")


def longest_sample(samples: Sequence[Sample]) -> Sample:
    """Return the sample whose longest sequence (plain or hinted prompt, plus response) has the most tokens."""
    return max(
        samples,
        key=lambda s: max(map(len, (s.prompt_ids, *s.hinted_prompts))) + len(s.response_ids),
    )
