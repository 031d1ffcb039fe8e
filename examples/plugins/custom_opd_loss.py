"""Distillation loss as often published. Its gradient has the WRONG SIGN: use custom_opd_loss_corrected.py.

This file shows what the sign check finds. The advantage is not detached and the ratio is student to teacher, so the
loss is d * exp(d) with d = student - teacher. Its derivative (1 + d) * exp(d) is positive where the teacher prefers the
token by less than a nat, so descent lowers the probability of tokens that the teacher prefers.
docs/guides/plugins.md has the derivation.
"""

import torch


def compute_opd_loss(student_logprobs, teacher_logprobs, advantage_mask, clip_ratio=0.2):
    """Return the loss of one reply. Token advantages: teacher minus student log-probability."""
    logratio = student_logprobs - teacher_logprobs
    ratio = torch.exp(logratio)
    clipped_ratio = torch.clamp(ratio, 1 - clip_ratio, 1 + clip_ratio)

    advantages = teacher_logprobs - student_logprobs

    loss_unclipped = -advantages * ratio
    loss_clipped = -advantages * clipped_ratio
    loss = torch.max(loss_unclipped, loss_clipped)

    masked_loss = loss * advantage_mask
    return masked_loss.sum() / advantage_mask.sum()
