"""Loss from scores and distillation, as often published. The distillation is WRONG: use hybrid_loss_corrected.py.

This file shows what the sign check finds. The log-probability difference is itself the loss, so its derivative is +1 at
every sampled token, and descent lowers all of them. docs/guides/plugins.md has the derivation.
"""

import torch


def compute_hybrid_loss(
    student_logprobs,
    teacher_logprobs,
    scalar_rewards,
    opd_weight=0.5,
    binary_weight=0.5,
    clip_ratio=0.2,
):
    """Return the loss of one reply and metrics. `compute_gae` is a supplied global."""
    advantages_binary = compute_gae(scalar_rewards)  # noqa: F821
    logratio = student_logprobs - student_logprobs.detach()
    ratio = torch.exp(logratio)

    pg_loss1 = -advantages_binary * ratio
    pg_loss2 = -advantages_binary * torch.clamp(ratio, 1 - clip_ratio, 1 + clip_ratio)
    binary_loss = torch.max(pg_loss1, pg_loss2).mean()

    advantages_opd = teacher_logprobs - student_logprobs
    opd_loss = -advantages_opd.mean()

    total_loss = binary_weight * binary_loss + opd_weight * opd_loss
    return total_loss, {
        "binary_loss": binary_loss.item(),
        "opd_loss": opd_loss.item(),
        "total_loss": total_loss.item(),
    }
