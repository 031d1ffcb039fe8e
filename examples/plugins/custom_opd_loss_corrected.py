"""Distillation from a teacher that was told the hint, on the tokens that the student sampled.

    openclaw-rl train --method opd --custom-loss-function-path examples/plugins/custom_opd_loss_corrected.py

grad KL(student || teacher) = E[(student - teacher) * grad student] over tokens that the student samples. So the gap is
an advantage (a number, detached), and the ratio is the student's to itself, which carries the gradient.
docs/guides/plugins.md has the derivation.
"""

import torch


def compute_opd_loss(student_logprobs, teacher_logprobs, advantage_mask, clip_ratio=0.2):
    """Of one reply, [T] each."""
    advantages = (teacher_logprobs - student_logprobs).detach()
    ratio = torch.exp(student_logprobs - student_logprobs.detach())
    clipped_ratio = torch.clamp(ratio, 1 - clip_ratio, 1 + clip_ratio)

    loss = torch.max(-advantages * ratio, -advantages * clipped_ratio)
    return (loss * advantage_mask).sum() / advantage_mask.sum()
