"""Rollout function for slime's `--rollout-function-path`: judged turns from the store, instead of fresh replies."""

from __future__ import annotations

from typing import Any

from openclaw_rl.other_trainers.slime.batch_feed import BatchFeed
from openclaw_rl.other_trainers.slime.options import SlimeOptions

_feeds: dict[SlimeOptions, BatchFeed] = {}


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """Wait for a batch of judged turns and return its samples as slime's `RolloutFnTrainOutput`.

    Raises `ValueError` for arguments of slime that do not fit, `FeedUnfit` for settings of the system that do not,
    `TeacherUnfit` when the teacher gives no log-probabilities, and `StreamEnded` when the train worker has ended. The
    batch is then free again, and a later call claims one.
    """
    from slime.rollout.base_types import RolloutFnTrainOutput
    from slime.utils.types import Sample

    if evaluation:
        raise ValueError(
            "there is nothing to evaluate: leave out --eval-interval, or set --eval-function-path"
        )
    feed = open_feed(SlimeOptions.from_args(args))
    samples = feed.next_samples()
    filled_up = sum(fields["remove_sample"] for fields in samples)
    metrics = {"openclaw/turns": len(samples) - filled_up, "openclaw/filled_up": filled_up}
    try:
        return RolloutFnTrainOutput(
            samples=[[Sample.from_dict(fields)] for fields in samples], metrics=metrics
        )
    except BaseException:
        # Of slime's own classes.
        feed.release_batch()
        raise


def open_feed(options: SlimeOptions) -> BatchFeed:
    """Return the connection of this process to the train worker; connect at the first call."""
    if options not in _feeds:
        _feeds[options] = BatchFeed(options)
    return _feeds[options]


def close_feeds() -> None:
    """End the connections of this process. Batches that slime did not finish are free again."""
    for feed in _feeds.values():
        feed.close()
    _feeds.clear()
