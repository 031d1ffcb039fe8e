"""What to know of a step: who was in it, how far off policy it was, what was held back, how far it went (in nats).

Legend: K tokens of the batch that may train, R response tokens of one sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from openclaw_rl.learner.loss.policy_loss import MAX_LOG_RATIO
from openclaw_rl.learner.scored_batch import Scored
from openclaw_rl.methods.types import AnyTerm, Sample

MASKS = ("gap", "opsm", "geometric")
MASKED = (
    "nothing is left to learn from: the masks (train.gap_low, train.gap_high, train.sequence_mask) or train.loss_path "
    "took every token that asks for a change"
)
NO_SLOPE = "the batch asks for no change any more: its gradient is 0"


class Epoch(NamedTuple):
    """One pass over the whole batch, of all ranks."""

    values: Mapping[str, float]  # of the loss ("total") and its parts
    counts: Mapping[str, int]  # of tokens, see `Loss.counts`
    norm: float  # of the gradient before it was clipped

    @property
    def sound(self) -> bool:
        """Everything about it is finite."""
        return bool(np.isfinite([self.norm, *self.values.values()]).all())

    @property
    def idle(self) -> bool:
        """It is sound, and there was nothing to take a step on."""
        return self.sound and (self.norm == 0 or self.counts.get("live", 0) == 0)


def why_idle(epochs: Sequence[Epoch]) -> str | None:
    """Why none of them took a step, in words for a person; None where one did, or where the gate has to refuse one."""
    if not all(epoch.idle for epoch in epochs):
        return None
    return NO_SLOPE if any(epoch.counts.get("live", 0) for epoch in epochs) else MASKED


def told(epochs: Sequence[Epoch], terms: Sequence[AnyTerm]) -> dict[str, float]:
    """Of all of them: mean losses, shares of all their tokens, the largest norm. What is not finite once, stays so."""
    values, counts = Counter[str](), Counter[str]()
    for epoch in epochs:
        values.update(epoch.values)
        counts.update(epoch.counts)
    out = {f"loss/{name}": value / len(epochs) for name, value in values.items()}
    out |= shares(counts, [term.name for term in terms])
    out |= {"gradient/norm": float(np.max([epoch.norm for epoch in epochs]))}  # max() would pass over a nan
    for term in terms:
        out |= term.metrics
    return out


def shares(counts: Mapping[str, int], terms: Sequence[str]) -> dict[str, float]:
    """From counts of tokens (`Loss.counts`, all micro-batches) to shares: of the batch's tokens, or of a term's.

    A term that is not in the counts stood on no token.
    """
    told = {f"masked/{mask}": counts.get(mask, 0) / max(1, counts.get("tokens", 0)) for mask in MASKS}
    for term in terms:
        of = max(1, counts.get(f"tokens/{term}", 0))
        told |= {f"{what}/{term}": counts.get(f"{what}/{term}", 0) / of for what in ("clipped", "capped")}
    return told


def measured(batch: Scored, members: Sequence[int], after: Sequence[torch.Tensor]) -> dict[str, float]:
    """`after`: of each member [R], the log-probabilities under the policy after the step."""
    masks = torch.cat([batch.mask(i) for i in members])

    def flat(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([parts[i] for i in members])[masks].double()

    before_K, base_K = flat(batch.student), flat(batch.base)
    mu_K = torch.cat([batch.mu(i) for i in members])[masks].double()
    now_K = torch.cat(list(after))[masks].double()
    d_K, moved_K = now_K - base_K, now_K - before_K
    return (
        _rewards([batch.samples[i] for i in members])
        | _engine_gap(batch, members)
        | _replay_gap(batch, members)
        | _off_policy(before_K, mu_K)
        | {
            "kl": (d_K.square() / 2).mean().item(),
            "kl/before": ((before_K - base_K).square() / 2).mean().item(),
            "kl/k1": d_K.mean().item(),
            "kl/k3": (torch.expm1(-d_K) + d_K).mean().item(),
            "kl/step": (moved_K.square() / 2).mean().item(),
            "entropy": flat(batch.entropy).mean().item(),
            "tokens": float(masks.sum()),
            "turns": float(len(members)),
        }
    )


def _off_policy(before_K: torch.Tensor, mu_K: torch.Tensor) -> dict[str, float]:
    """Before the step: |log rho|, the largest rho, and k3 of KL(mu || pi) (rho - 1 - log rho; what mu sampled)."""
    log_rho_K = before_K - mu_K
    bounded_K = log_rho_K.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return {
        "gap": log_rho_K.abs().mean().item(),
        "gap/max": log_rho_K.abs().max().item(),
        "ratio/max": bounded_K.max().exp().item(),
        "kl/mu": (torch.expm1(bounded_K) - bounded_K).mean().item(),
    }


def _rewards(samples: Sequence[Sample]) -> dict[str, float]:
    """Of the scores and, each rollout once, of the outcomes."""
    scores = [s.reward for s in samples if s.reward is not None]
    outcomes = {(e.task, e.rollout): e.outcome for s in samples if (e := s.episode) and e.outcome is not None}
    rewards = [*scores, *outcomes.values()]
    return {"reward/mean": float(np.mean(rewards)), "reward/std": float(np.std(rewards))} if rewards else {}


def _replay_gap(batch: Scored, members: Sequence[int]) -> dict[str, float]:
    """Mean |log rho| before the step of those that were trained on before: how stale they are."""
    again = [i for i in members if batch.samples[i].replay]
    if not again:
        return {}
    gaps_K = torch.cat([(batch.student[i].double() - batch.mu(i).double()).abs()[batch.mask(i)] for i in again])
    return {"gap/replays": gaps_K.mean().item()}


def _engine_gap(batch: Scored, members: Sequence[int]) -> dict[str, float]:
    """Mean |log pi - log mu| where both are of the same weights: what engine and trainer compute differently."""
    fresh = [i for i in members if batch.samples[i].on_policy]
    if not fresh:
        return {}
    gaps = torch.cat([(batch.student[i].double() - batch.mu(i).double()).abs()[batch.mask(i)] for i in fresh])
    return {"gap/engine": gaps.mean().item(), "gap/engine/tokens": float(len(gaps))}
