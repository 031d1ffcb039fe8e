"""A GRPO-style loss: the clipped surrogate, and a penalty on the log-ratio.

    openclaw-rl train --custom-loss-function-path examples/plugins/custom_loss.py

Despite their names, the two "logits" are log-probabilities of the sampled tokens: under the policy being trained, and
under the policy that sampled them. The mean of a log-ratio is unsuitable as a KL loss: its expected gradient is 0
(arXiv:2510.01555). To penalise the distance to the base, use `config["base_logprobs"]`.
"""

from typing import Any

import torch


def compute_loss(
    policy_logits: torch.Tensor,
    reference_logits: torch.Tensor,
    rewards: torch.Tensor,
    advantages: torch.Tensor,
    config: dict[str, Any],
) -> torch.Tensor:
    """Loss of one reply; tensors are [T]. `rewards`: score at the last token; `advantages`: from train.method."""
    log_ratio = policy_logits - reference_logits
    ratio = torch.exp(log_ratio)
    clip_range = config.get("clip_range", 0.2)

    clipped = torch.clamp(ratio, 1 - clip_range, 1 + clip_range)
    loss = -torch.min(ratio * advantages, clipped * advantages).mean()

    kl_coeff = config.get("kl_coeff", 0.01)
    kl_penalty = kl_coeff * log_ratio.mean()
    return loss + kl_penalty
