"""Loss from scores and distillation, each with its own surrogate.

    openclaw-rl train --method combine --custom-loss-function-path examples/plugins/hybrid_loss_corrected.py

If a reply has no score, `scalar_rewards` is 0; if it has no hint, the teacher's log-probabilities are the student's.
That part then has no gradient. docs/guides/plugins.md has the derivation of the signs.
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
    """Return the loss of one reply and metrics; tensors are [T]. `compute_gae` is a supplied global."""
    ratio = torch.exp(student_logprobs - student_logprobs.detach())
    clipped = torch.clamp(ratio, 1 - clip_ratio, 1 + clip_ratio)

    advantages_binary = compute_gae(scalar_rewards)  # noqa: F821
    binary_loss = torch.max(-advantages_binary * ratio, -advantages_binary * clipped).mean()

    advantages_opd = (teacher_logprobs - student_logprobs).detach()
    opd_loss = torch.max(-advantages_opd * ratio, -advantages_opd * clipped).mean()

    total_loss = binary_weight * binary_loss + opd_weight * opd_loss
    return total_loss, {
        "binary_loss": binary_loss.item(),
        "opd_loss": opd_loss.item(),
        "total_loss": total_loss.item(),
    }
