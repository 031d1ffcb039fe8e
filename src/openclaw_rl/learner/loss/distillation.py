"""Distillation losses: divergences from a teacher over N tokens and one tail bin for the rest of the vocabulary.

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

MAX_LOG_MASS = -1e-7  # upper bound of the log of the summed probability of N tokens, which rounding can push above 0


def with_tail(logps_KN: torch.Tensor) -> torch.Tensor:
    """Return [K, N + 1]: the full distribution, with the rest of the vocabulary in the last bin (arXiv:2601.20802)."""
    mass_K1 = torch.logsumexp(logps_KN, dim=-1, keepdim=True).clamp(max=MAX_LOG_MASS)
    return torch.cat([logps_KN, torch.log(-torch.expm1(mass_K1))], dim=-1)


def divergence(student_KN: torch.Tensor, teacher_KN: torch.Tensor, kind: Divergence) -> torch.Tensor:
    """Return the divergence over the N tokens and the tail, [K] in nats, with exact gradient through the student."""
    student, teacher = with_tail(student_KN), with_tail(teacher_KN)
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
    blocks = [_concat_ids(_topk_or_uniform(target, indices)) for target in _distill_terms(terms)]
    return torch.cat(blocks, dim=-1) if blocks else None


def distill_slices(
    terms: Sequence[AnyTerm], indices: Sequence[int], student_KN: torch.Tensor, slow: float
) -> list[TermSlice]:
    """Return the distillation terms on these samples. `student_KN`: of `distilled_token_ids`; `slow`: length EMA."""
    out, at = [], 0
    for target in _distill_terms(terms):
        supports = _topk_or_uniform(target, indices)
        teacher_KN = torch.cat([torch.from_numpy(s.logprobs) for s in supports]).to(student_KN)
        own_KN = student_KN[:, at : at + teacher_KN.shape[1]]
        at += teacher_KN.shape[1]
        out.append(
            TermSlice(
                name=target.name,
                weight=target.weight,
                advantages_K=torch.zeros(len(own_KN), dtype=own_KN.dtype, device=own_KN.device),
                mask_K=torch.cat([torch.from_numpy(target.masks[i]) for i in indices]).to(own_KN.device),
                denominator=target.sample_count * slow,
                divergence_K=divergence(own_KN, teacher_KN, target.divergence),
                ratio_cap=target.ratio_clip,
            )
        )
    return out


def _distill_terms(terms: Sequence[AnyTerm]) -> list[DistillTerm]:
    return [term for term in terms if isinstance(term, DistillTerm) and term.sample_count]


def _concat_ids(supports: Sequence[TopKLogprobs]) -> torch.Tensor:
    return torch.cat([torch.from_numpy(support.ids.astype("int64")) for support in supports])


def _topk_or_uniform(target: DistillTerm, indices: Sequence[int]) -> list[TopKLogprobs]:
    """Return the top-k of each sample. Samples outside the term get a uniform dummy, which their mask excludes."""
    width = next(support.ids.shape[1] for support in target.targets if support is not None)
    return [target.targets[i] or _uniform_topk(len(target.masks[i]), width) for i in indices]


def _uniform_topk(length: int, width: int) -> TopKLogprobs:
    ids_RN = np.broadcast_to(np.arange(width, dtype=np.int32), (length, width))
    return TopKLogprobs(ids=ids_RN, logprobs=np.full((length, width), -math.log(width + 1)))
