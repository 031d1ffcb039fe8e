"""Distillation as it is often printed. It pushes the WRONG WAY: use custom_opd_loss_corrected.py.

It stands here to show what the check of signs finds. The advantage is not detached and the ratio is taken to the
teacher, so the loss is d * exp(d) with d = student - teacher, whose derivative (1 + d) * exp(d) is positive wherever
the teacher prefers the token by less than a nat: descending lowers the probability of the very tokens that it prefers.
docs/guides/plugins.md has the derivation.
"""

import torch


def compute_opd_loss(student_logprobs, teacher_logprobs, advantage_mask, clip_ratio=0.2):
    """The token-level advantage from the gap between the log-probabilities of teacher and student."""
    logratio = student_logprobs - teacher_logprobs
    ratio = torch.exp(logratio)
    clipped_ratio = torch.clamp(ratio, 1 - clip_ratio, 1 + clip_ratio)

    advantages = teacher_logprobs - student_logprobs

    loss_unclipped = -advantages * ratio
    loss_clipped = -advantages * clipped_ratio
    loss = torch.max(loss_unclipped, loss_clipped)

    masked_loss = loss * advantage_mask
    return masked_loss.sum() / advantage_mask.sum()
