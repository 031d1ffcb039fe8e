"""The loss of a batch as one number per token, which the losses of the Tinker service can state.

At the first step on a batch, pi is known at every token before the step. So the gradient of our whole loss (clipped
surrogates of all terms, masks, KL to the base, denominators; docs/paper_index.md) with respect to log pi is known, too.
The service's importance-sampling loss, -sum exp(log pi - q) A, has the gradient -A where q is log pi before the step.
With A = -dL/dlog pi its gradient is therefore that of our loss, exactly.

Shapes: R response tokens of a sample, K of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from openclaw_rl.errors import ModelError
from openclaw_rl.learner.loss import distillation
from openclaw_rl.learner.loss.policy_loss import LossResult, make_loss_config, micro_batch_loss
from openclaw_rl.learner.loss.scored_batch import ScoredBatch
from openclaw_rl.methods.types import AnyTerm
from openclaw_rl.settings.load import TrainConfig

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGradients:
    """Advantages [R] of each member of the batch, for the service; and the loss that they are the gradient of."""

    advantages: list[FloatArray]
    loss: LossResult


def compute_token_gradients(
    batch: ScoredBatch,
    terms: Sequence[AnyTerm],
    members: Sequence[int],
    length_ema: float,
    train: TrainConfig,
) -> TokenGradients:
    """Return the advantages of the samples in `members`. `length_ema`: tokens per reply, for the denominators.

    Raises `ModelError` if one is not finite, which cannot be sent.
    """
    logp_K = torch.cat([batch.student[i] for i in members]).double().requires_grad_()
    lengths = torch.tensor([len(batch.samples[i].response_ids) for i in members])
    from_teacher = torch.tensor([batch.samples[i].from_teacher for i in members])
    loss = micro_batch_loss(
        logp_K=logp_K,
        mu_K=torch.cat([batch.sampled_logprobs(i) for i in members]).double(),
        base_K=torch.cat([batch.base[i] for i in members]).double(),
        terms=distillation.term_slices(terms, members, logp_K.unsqueeze(-1), length_ema),
        kl_coef=train.loss.kl_coef,
        kl_denominator=len(members) * length_ema,
        config=make_loss_config(train),
        rows_K=torch.arange(len(members)).repeat_interleave(lengths),
        sampled_K=~from_teacher.repeat_interleave(lengths) if from_teacher.any() else None,
    )
    (gradient_K,) = torch.autograd.grad(loss.total, logp_K, materialize_grads=True)
    advantage_K = -gradient_K.float()
    if not advantage_K.isfinite().all():
        raise ModelError("the gradient of the batch is not finite")
    parts = torch.split(advantage_K, lengths.tolist())
    return TokenGradients(advantages=[part.numpy() for part in parts], loss=loss)
