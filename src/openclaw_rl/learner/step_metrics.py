"""Metrics of a step: its turns, how off-policy they were, what was masked, how far the policy moved (in nats).

Shapes: K trainable tokens of the batch, R response tokens of one sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from openclaw_rl.learner.loss.policy_loss import MAX_LOG_RATIO
from openclaw_rl.learner.loss.scored_batch import ScoredBatch
from openclaw_rl.methods.types import AnyTerm, Sample
from openclaw_rl.reasons import Reason, ReasonCode

MASKS = ("gap", "opsm", "geometric")
ALL_MASKED = Reason(
    ReasonCode.NO_GRADIENT,
    "no token is left to train on: the masks (train.loss.token_ratio_min, train.loss.token_ratio_max, "
    "train.loss.sequence_mask) or train.loss.path removed every token with a gradient",
)
ZERO_GRADIENT = Reason(
    ReasonCode.NO_GRADIENT, "the batch asks for no further change: its gradient is 0"
)


class EpochResult(NamedTuple):
    """Result of one pass over the whole batch, summed over all ranks."""

    values: Mapping[str, float]  # the loss ("total") and its parts
    counts: Mapping[str, int]  # of tokens, see `LossResult.counts`
    norm: float  # of the gradient, before clipping

    @property
    def has_no_step(self) -> bool:
        """Whether loss, parts and gradient norm are finite and no step was taken, because there was no gradient."""
        finite = bool(np.isfinite([self.norm, *self.values.values()]).all())
        return finite and (self.norm == 0 or self.counts.get("live", 0) == 0)


def no_step_reason(epochs: Sequence[EpochResult]) -> Reason | None:
    """Return why no epoch took a step. None if one did, or if a value is not finite, which the gate rejects."""
    if not all(epoch.has_no_step for epoch in epochs):
        return None
    return ZERO_GRADIENT if any(epoch.counts.get("live", 0) for epoch in epochs) else ALL_MASKED


def epoch_metrics(epochs: Sequence[EpochResult], terms: Sequence[AnyTerm]) -> dict[str, float]:
    """Return mean losses, token shares and the largest gradient norm over all epochs. Non-finite values propagate."""
    values = Counter[str]()
    counts = Counter[str]()
    for epoch in epochs:
        values.update(epoch.values)
        counts.update(epoch.counts)
    out = {f"loss/{name}": value / len(epochs) for name, value in values.items()}
    out |= token_shares(counts, [term.name for term in terms])
    # Unlike max(), propagates nan.
    out |= {"gradient/norm": float(np.max([epoch.norm for epoch in epochs]))}
    for term in terms:
        out |= term.metrics
    return out


def token_shares(counts: Mapping[str, int], terms: Sequence[str]) -> dict[str, float]:
    """Return token counts (`LossResult.counts`, summed over micro-batches) as shares of the batch's or term's tokens.

    A term that is missing from the counts has no tokens.
    """
    shares = {
        f"masked/{mask}": counts.get(mask, 0) / max(1, counts.get("tokens", 0)) for mask in MASKS
    }
    for term in terms:
        total = max(1, counts.get(f"tokens/{term}", 0))
        shares |= {
            f"{what}/{term}": counts.get(f"{what}/{term}", 0) / total
            for what in ("clipped", "capped")
        }
    return shares


def policy_metrics(
    batch: ScoredBatch,
    members: Sequence[int],
    after: Sequence[torch.Tensor],
    entropy_after: Sequence[torch.Tensor] | None = None,
) -> dict[str, float]:
    """Return policy metrics.

    `after`: [R] log-probabilities of each member under the policy after the step. `entropy_after`: [R] nats; None: not
    known, and then no entropy is compared with the teacher's.
    """
    masks = torch.cat([torch.from_numpy(batch.samples[i].mask.astype(bool)) for i in members])

    def flatten_masked(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([parts[i] for i in members])[masks].double()

    before_K = flatten_masked(batch.student)
    base_K = flatten_masked(batch.base)
    mu_K = torch.cat([batch.sampled_logprobs(i) for i in members])[masks].double()
    now_K = torch.cat(list(after))[masks].double()
    d_K = now_K - base_K
    moved_K = now_K - before_K
    log_rho_K = before_K - mu_K
    samples = [batch.samples[i] for i in members]
    return (
        _reward_metrics(samples)
        | _gaps_by_source(samples, torch.split(log_rho_K.abs(), batch.trainable_tokens(members)))
        | _off_policy_metrics(log_rho_K)
        | ({} if entropy_after is None else _entropy_beside_teacher(batch, members, entropy_after))
        | {
            "kl": (d_K.square() / 2).mean().item(),
            "kl/before": ((before_K - base_K).square() / 2).mean().item(),
            "kl/k1": d_K.mean().item(),
            "kl/k3": (torch.expm1(-d_K) + d_K).mean().item(),
            "kl/step": (moved_K.square() / 2).mean().item(),
            "entropy": flatten_masked(batch.entropy).mean().item(),
            "tokens": float(masks.sum()),
            "turns": float(len(samples)),
        }
    )


def _entropy_beside_teacher(
    batch: ScoredBatch, members: Sequence[int], after: Sequence[torch.Tensor]
) -> dict[str, float]:
    """Return the entropy of the policy before and after the step and of the teacher, on the replies with a hint.

    Only of a batch with replies of the teacher, such as a step of practice: elsewhere a few tokens have a hint.
    """
    if not any(sample.from_teacher for sample in batch.samples):
        return {}
    before_K = list[torch.Tensor]()
    after_K = list[torch.Tensor]()
    teacher_K = list[torch.Tensor]()
    for i, entropy_R in zip(members, after, strict=True):
        teachers = batch.teacher_entropy[i]
        if not teachers:
            continue
        mask = torch.from_numpy(batch.samples[i].mask.astype(bool))
        before_K.append(batch.entropy[i][mask])
        after_K.append(entropy_R[mask])
        teacher_K.append(torch.stack(teachers).mean(0)[mask])
    if not before_K:
        return {}
    parts = {"entropy/before": before_K, "entropy/after": after_K, "entropy/teacher": teacher_K}
    return {name: torch.cat(part).double().mean().item() for name, part in parts.items()}


def _off_policy_metrics(log_rho_K: torch.Tensor) -> dict[str, float]:
    """Return, before the step, |log rho|, the largest rho, and the k3 estimate of KL(mu || pi) (rho - 1 - log rho)."""
    bounded_K = log_rho_K.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return {
        "gap": log_rho_K.abs().mean().item(),
        "gap/max": log_rho_K.abs().max().item(),
        "ratio/max": bounded_K.max().exp().item(),
        "kl/mu": (torch.expm1(bounded_K) - bounded_K).mean().item(),
    }


def _reward_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Return mean and standard deviation over turn scores and, once per rollout, outcomes."""
    scores = [sample.reward for sample in samples if sample.reward is not None]
    episodes = [sample.episode for sample in samples if sample.episode]
    outcomes = {episode.episode: episode.reward for episode in episodes}
    rewards = [*scores, *outcomes.values()]
    if not rewards:
        return {}
    return {"reward/mean": float(np.mean(rewards)), "reward/std": float(np.std(rewards))}


def _gaps_by_source(samples: Sequence[Sample], gaps: Sequence[torch.Tensor]) -> dict[str, float]:
    """Return mean |log rho| before the step of on-policy turns and of replays; `gaps`: of the tokens of each sample.

    The first is the numerical difference between engine and trainer, the second the staleness of the replays.
    """
    gaps_of_replays = []
    gaps_of_engine = []
    for sample, gap in zip(samples, gaps, strict=True):
        if sample.replay:
            gaps_of_replays.append(gap)
        if sample.on_policy:
            gaps_of_engine.append(gap)
    metrics = {}
    if gaps_of_replays:
        metrics["gap/replays"] = torch.cat(gaps_of_replays).mean().item()
    if gaps_of_engine:
        gap_K = torch.cat(gaps_of_engine)
        metrics["gap/engine"] = gap_K.mean().item()
        metrics["gap/engine/tokens"] = float(len(gap_K))
    return metrics
