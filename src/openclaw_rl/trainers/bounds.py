"""The bounds of the loss that the settings put in force."""

from __future__ import annotations

from openclaw_rl.config import TrainConfig
from openclaw_rl.trainers.loss import Bounds


def bounds_of(train: TrainConfig) -> Bounds:
    """What is not chosen keeps a bound that holds nothing back."""
    masks: dict[str, dict[str, float]] = {
        "none": {},
        "opsm": {"opsm_delta": train.opsm_delta},
        "geometric": {"geometric_low": train.geometric_low, "geometric_high": train.geometric_high},
    }
    return Bounds(
        clip_low=train.clip_low,
        clip_high=train.clip_high,
        dual_clip=train.dual_clip,
        gap_low=train.gap_low,
        gap_high=train.gap_high,
        kind=train.loss,
        **masks[train.sequence_mask],
    )
