"""Distillation losses over N tokens and one tail bin for the rest of the vocabulary; terms cut into micro-batches.

Shapes: K response tokens of a micro-batch, N vocabulary tokens at each. The student is the policy being trained, with
gradient. The teacher is the distribution in a `methods.types.DistillTerm`, without gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from openclaw_rl.learner.loss.policy_loss import TermSlice
from openclaw_rl.methods.types import AnyTerm, DistillTerm, Divergence, TopKLogprobs

# Upper bound of the log of the summed probability of N tokens, which rounding can push above 0.
MAX_LOG_MASS = -1e-7


def with_tail(logps_KN: torch.Tensor) -> torch.Tensor:
    """Return [K, N + 1]: the full distribution, with the rest of the vocabulary in the last bin (arXiv:2601.20802)."""
    mass_K1 = torch.logsumexp(logps_KN, dim=-1, keepdim=True).clamp(max=MAX_LOG_MASS)
    return torch.cat([logps_KN, torch.log(-torch.expm1(mass_K1))], dim=-1)


def divergence(
    student_KN: torch.Tensor, teacher_KN: torch.Tensor, kind: Divergence
) -> torch.Tensor:
    """Return the divergence over the N tokens and the tail, [K] in nats, with exact gradient through the student."""
    student = with_tail(student_KN)
    teacher = with_tail(teacher_KN)
    match kind:
        case "reverse":
            return _kl_divergence(student, teacher)
        case "forward":
            return _kl_divergence(teacher, student)
        case "jsd":
            middle = torch.logaddexp(student, teacher) - math.log(2)
            return (_kl_divergence(student, middle) + _kl_divergence(teacher, middle)) / 2


def _kl_divergence(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return [K] KL(p || q) over the last dimension; the inputs are log-probabilities."""
    return (p.exp() * (p - q)).sum(-1)


def distilled_token_ids(terms: Sequence[AnyTerm], indices: Sequence[int]) -> torch.Tensor | None:
    """Return [K, N] token ids of all distillation terms on these samples, term after term; None without such terms."""
    distilled = [term for term in terms if isinstance(term, DistillTerm) and term.sample_count]
    blocks = [
        np.concatenate([top.ids for top in _topk_or_uniform(term, indices)]) for term in distilled
    ]
    return torch.from_numpy(np.concatenate(blocks, axis=-1).astype(np.int64)) if blocks else None


def term_slices(
    terms: Sequence[AnyTerm], indices: Sequence[int], logps_KN: torch.Tensor, length_ema: float
) -> list[TermSlice]:
    """Return the terms on these samples. Denominator: samples in the term times `length_ema` (tokens per reply).

    `logps_KN`: [K, 1 + N] under the student, with gradient: of the response token, then of `distilled_token_ids`.
    """
    out = []
    column = 1
    for term in terms:
        if not term.sample_count:
            continue
        advantages_K = torch.zeros_like(logps_KN[:, 0])
        divergence_K = None
        if isinstance(term, DistillTerm):
            top = np.concatenate([support.logprobs for support in _topk_or_uniform(term, indices)])
            student_KN = logps_KN[:, column : column + top.shape[1]]
            column += top.shape[1]
            divergence_K = divergence(
                student_KN, torch.from_numpy(top).to(logps_KN), term.divergence
            )
            if term.per_reply:
                divergence_K = divergence_K * _reply_weights(term, indices, length_ema).to(
                    divergence_K
                )
        else:
            advantages_K = torch.from_numpy(
                np.concatenate([term.advantages[i] for i in indices])
            ).to(logps_KN)
        out.append(
            TermSlice(
                name=term.name,
                weight=term.weight,
                advantages_K=advantages_K,
                mask_K=torch.from_numpy(np.concatenate([term.masks[i] for i in indices])).to(
                    logps_KN.device
                ),
                denominator=term.sample_count * length_ema,
                divergence_K=divergence_K,
                ratio_cap=term.ratio_clip if isinstance(term, DistillTerm) else math.inf,
            )
        )
    return out


def _reply_weights(term: DistillTerm, indices: Sequence[int], length_ema: float) -> torch.Tensor:
    """Return [K] weights with which a sum over tokens divided by `length_ema` is the mean per token of each reply."""
    masks = [torch.from_numpy(term.masks[i]) for i in indices]
    return torch.cat(
        [torch.full((len(mask),), length_ema / max(1, int(mask.sum()))) for mask in masks]
    )


def _topk_or_uniform(target: DistillTerm, indices: Sequence[int]) -> list[TopKLogprobs]:
    """Return the top-k of each sample. Samples outside the term get a uniform dummy, which their mask excludes."""
    width = next(support.ids.shape[1] for support in target.targets if support is not None)
    return [target.targets[i] or _uniform_topk(len(target.masks[i]), width) for i in indices]


def _uniform_topk(length: int, width: int) -> TopKLogprobs:
    ids_RN = np.broadcast_to(np.arange(width, dtype=np.int32), (length, width))
    return TopKLogprobs(ids=ids_RN, logprobs=np.full((length, width), -math.log(width + 1)))
