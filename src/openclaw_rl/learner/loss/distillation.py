"""Following a teacher's distribution: divergences over N tokens and one tail, from log-probabilities of the N.

Legend: K response tokens of a micro-batch, N tokens of the vocabulary at each. Student: the policy being trained, with
its gradient; teacher: what a method gave (`credit.Target`), without.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from openclaw_rl.learner.loss.policy_loss import TermSlice
from openclaw_rl.methods.types import AnyTerm, Divergence, Support, Target

MOST_MASS = -1e-7  # log of what N tokens may hold together at most: rounding may make it more than 1


def with_tail(logps_KN: torch.Tensor) -> torch.Tensor:
    """[K, N + 1] a whole distribution: the last bin is the rest of the vocabulary (arXiv:2601.20802)."""
    mass_K1 = torch.logsumexp(logps_KN, dim=-1, keepdim=True).clamp(max=MOST_MASS)
    return torch.cat([logps_KN, torch.log(-torch.expm1(mass_K1))], dim=-1)


def divergence(student_KN: torch.Tensor, teacher_KN: torch.Tensor, kind: Divergence) -> torch.Tensor:
    """[K] nats, over the N tokens and the tail, with its exact gradient through the student."""
    student, teacher = with_tail(student_KN), with_tail(teacher_KN)
    match kind:
        case "reverse":
            return _kl(student, teacher)
        case "forward":
            return _kl(teacher, student)
        case "jsd":
            middle = torch.logaddexp(student, teacher) - math.log(2)
            return (_kl(student, middle) + _kl(teacher, middle)) / 2


def _kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """[K] KL(p || q) over the last dimension, of log-probabilities."""
    return (p.exp() * (p - q)).sum(-1)


def asked(terms: Sequence[AnyTerm], indices: Sequence[int]) -> torch.Tensor | None:
    """[K, N] the tokens that the targets are about on these samples, target by target; None: no targets."""
    blocks = [_ids(_supports(target, indices)) for target in _targets(terms)]
    return torch.cat(blocks, dim=-1) if blocks else None


def slices(terms: Sequence[AnyTerm], indices: Sequence[int], student_KN: torch.Tensor, slow: float) -> list[TermSlice]:
    """The targets on these samples. `student_KN`: of the tokens `asked` for; `slow`: reply tokens on average."""
    out, at = [], 0
    for target in _targets(terms):
        supports = _supports(target, indices)
        teacher_KN = torch.cat([torch.from_numpy(s.logps) for s in supports]).to(student_KN)
        own_KN = student_KN[:, at : at + teacher_KN.shape[1]]
        at += teacher_KN.shape[1]
        out.append(
            TermSlice(
                name=target.name,
                weight=target.weight,
                advantages_K=torch.zeros(len(own_KN), dtype=own_KN.dtype, device=own_KN.device),
                mask_K=torch.cat([torch.from_numpy(target.masks[i]) for i in indices]).to(own_KN.device),
                denominator=target.samples * slow,
                divergence_K=divergence(own_KN, teacher_KN, target.divergence),
                cap=target.cap,
            )
        )
    return out


def _targets(terms: Sequence[AnyTerm]) -> list[Target]:
    return [term for term in terms if isinstance(term, Target) and term.samples]


def _ids(supports: Sequence[Support]) -> torch.Tensor:
    return torch.cat([torch.from_numpy(support.ids.astype("int64")) for support in supports])


def _supports(target: Target, indices: Sequence[int]) -> list[Support]:
    """Of each sample; where one is not in the term, some tokens and a flat distribution, which its mask takes out."""
    width = next(support.ids.shape[1] for support in target.supports if support is not None)
    return [target.supports[i] or _flat(len(target.masks[i]), width) for i in indices]


def _flat(length: int, width: int) -> Support:
    ids_RN = np.broadcast_to(np.arange(width, dtype=np.int32), (length, width))
    return Support(ids=ids_RN, logps=np.full((length, width), -math.log(width + 1)))
