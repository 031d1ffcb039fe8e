"""Selection of turns that are too stale to train on, per turn and over the whole batch.

Shapes: R response tokens of one sample. The gap of a set of tokens is the mean of |log rho| = |log pi - log mu| in
nats, where pi is the policy before the step and mu the policy that sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from openclaw_rl.errors import BrokenPolicy
from openclaw_rl.methods.types import Sample
from openclaw_rl.reasons import Reason, ReasonCode


def drop_stale(
    samples: Sequence[Sample],
    student: Sequence[torch.Tensor],
    *,
    max_gap: float,
    max_batch_gap: float,
) -> tuple[list[int], dict[str, Reason]]:
    """Return the indices of the samples to keep, and a reason for each dropped turn.

    First, turns with a gap above `max_gap` are dropped. Then the stalest turn is dropped repeatedly while the gap of
    all tokens together is above `max_batch_gap`, since many turns just below the limit still form an off-policy batch.
    This second rule is applied to new turns alone, then to replays on top of them, because replays were trained on once
    already. Raises `BrokenPolicy` if a log-probability is not finite.
    """
    gaps = []
    for sample, logp in zip(samples, student, strict=True):
        gaps.append(_token_gaps(sample, logp.numpy()))
    means = [_mean_gap([gap]) for gap in gaps]
    dropped: dict[str, Reason] = {}
    fresh: list[int] = []
    replays: list[int] = []
    for i, sample in enumerate(samples):
        if not means[i] <= max_gap:
            measure = f"mean |log ratio| {means[i]:.2f}"
            dropped[sample.turn] = _stale_reason(
                sample, measure, "train.safety.max_turn_log_ratio", max_gap
            )
        elif sample.replay:
            replays.append(i)
        else:
            fresh.append(i)
    for trusted, group in (([], fresh), (fresh, replays)):
        whole = _mean_gap([gaps[i] for i in trusted + group])
        while whole > max_batch_gap:
            stalest = max(group, key=means.__getitem__)
            group.remove(stalest)
            measure = f"mean |log ratio| {means[stalest]:.2f}, of its whole batch {whole:.2f}"
            dropped[samples[stalest].turn] = _stale_reason(
                samples[stalest], measure, "train.safety.max_batch_log_ratio", max_batch_gap
            )
            whole = _mean_gap([gaps[i] for i in trusted + group])
    return sorted(fresh + replays), dropped


def _mean_gap(gaps: Sequence[np.ndarray[Any, Any]]) -> float:
    return float(np.concatenate(gaps).mean()) if sum(map(len, gaps)) else 0.0


def _stale_reason(sample: Sample, gap: str, setting: str, bound: float) -> Reason:
    return Reason(
        ReasonCode.TOO_STALE,
        f"too stale: {gap} between version {sample.version} that sampled it and the policy being trained, "
        f"above {setting} {bound:g}",
    )


def _token_gaps(sample: Sample, student: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return |log rho| of the trainable tokens; 0 for a teacher's reply, which has no importance ratio.

    Raises `BrokenPolicy` if a value is not finite.
    """
    if not np.all(np.isfinite(student)):
        raise BrokenPolicy(
            f"turn {sample.turn}: expected finite log-probabilities, got {student}. The policy's weights are broken: "
            "roll back to an earlier version."
        )
    if sample.from_teacher:
        return np.zeros(int(sample.mask.sum()))
    gaps: np.ndarray[Any, Any] = np.abs(student.astype(np.float64) - sample.logprobs)[sample.mask]
    return gaps


def stale_turns(dropped: Mapping[str, Reason]) -> set[str]:
    """Return those of the dropped turns that were too stale."""
    return {turn for turn, reason in dropped.items() if reason.code is ReasonCode.TOO_STALE}


def no_signal_reason(sample: Sample) -> Reason:
    """Return why a sample that is not stale is in no term of the loss."""
    if sample.episode is None:
        return Reason(ReasonCode.NO_SIGNAL, "no score and no hint that the method can use")
    return Reason(ReasonCode.EQUAL_REWARDS, "its group gives no signal: all its rewards are equal")
