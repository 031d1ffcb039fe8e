"""Distillation loss on the tokens that the student sampled; the teacher has the hint in its prompt.

    openclaw-rl train --method opd --custom-loss-function-path examples/plugins/custom_opd_loss_corrected.py

grad KL(student || teacher) = E[(student - teacher) * grad student] over tokens that the student samples. So the
difference is a detached advantage, and the gradient comes from the ratio of the student to itself.
docs/guides/plugins.md has the derivation.
"""

import torch


def compute_opd_loss(student_logprobs, teacher_logprobs, advantage_mask, clip_ratio=0.2):
    """Return the loss of one reply; tensors are [T]."""
    advantages = (teacher_logprobs - student_logprobs).detach()
    ratio = torch.exp(student_logprobs - student_logprobs.detach())
    clipped_ratio = torch.clamp(ratio, 1 - clip_ratio, 1 + clip_ratio)

    loss = torch.max(-advantages * ratio, -advantages * clipped_ratio)
    return (loss * advantage_mask).sum() / advantage_mask.sum()
