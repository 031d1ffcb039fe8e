"""What to know of a step: the gap before it, and the distances after it (per token, in nats)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from openclaw_rl.trainers.scored import Scored


def measured(batch: Scored, members: Sequence[int], after: Sequence[torch.Tensor]) -> dict[str, float]:
    """`after`: of each member [R], the log-probabilities under the policy after the step."""
    masks = torch.cat([batch.mask(i) for i in members])

    def flat(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([parts[i] for i in members])[masks].double()

    before, base = flat(batch.student), flat(batch.base)
    mu = torch.cat([batch.mu(i) for i in members])[masks].double()
    now = torch.cat(list(after))[masks].double()
    d, moved = now - base, now - before
    rewards = [r for i in members if (r := batch.samples[i].reward) is not None]
    scores = {"reward/mean": float(np.mean(rewards)), "reward/std": float(np.std(rewards))} if rewards else {}
    return (
        scores
        | _engine_gap(batch, members)
        | {
            "gap": (before - mu).abs().mean().item(),
            "kl": (d.square() / 2).mean().item(),
            "kl/k1": d.mean().item(),
            "kl/k3": (torch.expm1(-d) + d).mean().item(),
            "kl/step": (moved.square() / 2).mean().item(),
            "entropy": flat(batch.entropy).mean().item(),
            "tokens": float(masks.sum()),
            "turns": float(len(members)),
        }
    )


def _engine_gap(batch: Scored, members: Sequence[int]) -> dict[str, float]:
    """Mean |log pi - log mu| where both are of the same weights: what engine and trainer compute differently."""
    fresh = [i for i in members if batch.samples[i].on_policy]
    if not fresh:
        return {}
    gaps = torch.cat([(batch.student[i].double() - batch.mu(i).double()).abs()[batch.mask(i)] for i in fresh])
    return {"gap/engine": gaps.mean().item(), "gap/engine/tokens": float(len(gaps))}
