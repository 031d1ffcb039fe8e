"""The learning rate: constant, after a warm-up if one is wanted."""

from __future__ import annotations

from openclaw_rl.config import TrainConfig


def rate(train: TrainConfig, *, steps: int, samples: int) -> float:
    """Of the step that comes after `steps` steps on `samples` turns. A pure function: nothing of it needs saving.

    Warm-up is linear, over `warmup_steps` steps or `warmup_samples` turns, whichever lasts longer; its first step is
    not zero.
    """
    by_steps = (steps + 1) / train.warmup_steps if train.warmup_steps else 1.0
    by_samples = (samples + 1) / train.warmup_samples if train.warmup_samples else 1.0
    return train.learning_rate * min(1.0, by_steps, by_samples)
