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
from openclaw_rl.methods.types import Sample
from openclaw_rl.protocols import Batch, PolicyWork, Waiting
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store.lineage import policies, rejected_batches, training_queue
from openclaw_rl.train.context import TrainContext
from openclaw_rl.train.turn_queue import QueuedTurns
from openclaw_rl.types import Policy, PolicyState

BATCH_ERRORS = (ValueError, ModelError, PluginError)
"""Exceptions that blame the batch. Any other exception is an error of the trainer itself, and ends the worker."""
MAX_CONSECUTIVE_FAILURES = 8
"""Consecutive turns, each tried alone, that may fail. After that the cause is probably not the turns."""


class BisectionSource:
    """The next part of the batch that was rejected last, of those whose turns are still in the queue."""

    def __init__(self, context: TrainContext, queued: QueuedTurns) -> None:
        self._context = context
        self._queued = queued

    def next_batch(self, policy: PolicyWork) -> Batch | Waiting | None:
        """Return the next part; None if no turn of the queue was in a rejected batch."""
        queued = self._queued.list_ids(policy)
        if not queued:
            return None
        with self._context.store.read() as conn:
            part = bisect(queued, rejected_batches.last_rejections(conn, queued))
            if not part:
                return None
            turns = training_queue.load_judged_turns(conn, part)
        return Batch(head=policy.head, turns=turns, is_fixed=True)


def bisect(queued: Sequence[str], rejections: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return at most half of the batch that the oldest rejected turn in the queue was in; empty if none was rejected.

    `rejections`: turn id -> (the last version that was rejected with it, number of turns of that version).
    """
    rejected = [turn for turn in queued if turn in rejections]
    if not rejected:
        return []
    oldest = rejections[rejected[0]]
    together = [turn for turn in rejected if rejections[turn] == oldest]
    _, size = oldest
    most = max(1, size // 2)
    return together[:most]


def count_failed_alone(conn: Connection) -> int:
    """Return how many of the newest versions were rejected because a single turn failed, up to the last other result.

    A batch of several turns that failed in between does not end the count.
    """
    failed = takewhile(_is_failed, policies.newest_first(conn))
    return sum(len(policies.uses_of_version(conn, policy.version)) == 1 for policy in failed)


def _is_failed(policy: Policy) -> bool:
    """Return whether the version was rejected because the trainer raised, or died."""
    return policy.state is PolicyState.REJECTED and policy.reason_code is ReasonCode.CANNOT_TRAIN


def failure_reason(cause: str) -> Reason:
    """Return why a batch on which the trainer raised, or died, gave no version. `cause`: as text."""
    return Reason(ReasonCode.CANNOT_TRAIN, f"it cannot be trained: {cause}")


def longest_sample(samples: Sequence[Sample]) -> Sample:
    """Return the sample whose longest sequence (plain or hinted prompt, plus response) has the most tokens."""
    return max(samples, key=_longest_sequence)


def _longest_sequence(sample: Sample) -> int:
    longest_prompt = max(map(len, (sample.prompt_ids, *sample.hinted_prompts)))
    return longest_prompt + len(sample.response_ids)
