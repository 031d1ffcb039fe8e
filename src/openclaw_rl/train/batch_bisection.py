"""Batches of which nothing came, and the turn that is to blame for it.

A batch that is rejected, or that cannot be trained, is recorded as a rejected version with its uses. Its fresh turns
are then tried in halves, without replays: good ones train, and the one that fails alone leaves with its reason. What a
turn was rejected with is in the store, so a trainer that dies in between goes on where it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from openclaw_rl.errors import ModelError, PluginError
from openclaw_rl.methods.types import Sample
from openclaw_rl.settings.load import TrainConfig
from openclaw_rl.store import policies
from openclaw_rl.train.sample_builder import Signal
from openclaw_rl.types import JudgedTurn, Policy

OF_THE_BATCH = (ValueError, ModelError, PluginError)
"""What a trainer raises about a batch. Anything else is an error of the trainer itself, and ends the room."""
HOPELESS = 8
"""Turns in a row, each tried alone, about which the trainer raised: then it is hardly the turns."""


def claimed(conn: Connection, head: Policy, signal: Signal, train: TrainConfig) -> tuple[list[JudgedTurn], bool]:
    """The next fresh turns to train on, and whether they are part of a batch of which nothing came."""
    items = policies.claimable(
        conn,
        head=head.version,
        limit=train.most,
        max_uses=train.max_uses,
        need_score=signal.uses_reward,
        need_hint=signal.uses_hints,
    )
    again = retried(items, policies.rejections(conn, [i.turn.id for i in items]))
    return again or items, bool(again)


def retried(items: Sequence[JudgedTurn], rejections: Mapping[str, tuple[int, int]]) -> list[JudgedTurn]:
    """At most half of the batch that the oldest rejected turn among `items` was in; empty when none was rejected.

    `rejections`: turn -> (the last version that was rejected with it, turns of that version).
    """
    oldest = next((rejections[i.turn.id] for i in items if i.turn.id in rejections), None)
    if oldest is None:
        return []
    together = [i for i in items if rejections.get(i.turn.id) == oldest]
    return together[: max(1, oldest[1] // 2)]


def longest(samples: Sequence[Sample]) -> Sample:
    """The one whose row, plain or hinted, has the most tokens."""
    return max(samples, key=lambda s: max(map(len, (s.prompt_ids, *s.hinted_prompts))) + len(s.response_ids))
