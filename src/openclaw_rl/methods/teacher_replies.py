"""Credit for batches in which the teacher sampled some of the replies, as practice on a lesson does.

A policy that is sure of itself never samples what a new hint asks for, so credit on its own replies cannot move it. On
replies that the hinted teacher sampled, the forward KL(teacher || policy) can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from openclaw_rl.methods.hint_selection import FloatArray, mix_teachers
from openclaw_rl.methods.topk_distillation import TopKDistillation
from openclaw_rl.methods.types import (
    AnyTerm,
    BatchLogprobs,
    CreditMethod,
    PolicyGradientTerm,
    Sample,
    TopKScores,
)
from openclaw_rl.types import Logprobs

# Of a teacher's token that the policy finds much likelier than the teacher does.
MIN_ADVANTAGE = -1.0


class TeacherTerm(Protocol):
    """The term on the replies that the teacher sampled."""

    def loss_terms(
        self, evidence: BatchLogprobs, method_state: Mapping[str, Any]
    ) -> Sequence[AnyTerm]:
        """Return one term over the samples with hints."""


class SampledTeacherTerm:
    """The forward KL(T || pi) by the teacher's tokens alone, for trainers without the log-probabilities of others.

    A_t = 1 - pi(y_t) / T(y_t), at least -1: an estimate of the gradient of KL(T_t || pi_t) where y_t ~ T_t. It is
    unbiased before the bound, as E_T[(pi / T) d log pi] = 0 takes nothing away, and 0 where both agree.
    """

    def loss_terms(
        self, evidence: BatchLogprobs, method_state: Mapping[str, Any]
    ) -> tuple[PolicyGradientTerm, ...]:
        """Return one term over the samples with hints; several hints are an even mixture of teachers."""
        triples = list(
            zip(evidence.samples, evidence.student_logprobs, evidence.teacher_logprobs, strict=True)
        )
        return (
            PolicyGradientTerm(
                name="teacher_replies",
                weight=1.0,
                advantages=tuple(_sampled_advantages(logp, hinted) for _, logp, hinted in triples),
                masks=tuple(sample.mask & bool(hinted) for sample, _, hinted in triples),
            ),
        )


def _sampled_advantages(logp: Logprobs, hinted: Sequence[Logprobs]) -> FloatArray:
    if not hinted:
        return np.zeros(len(logp))
    # An infinite ratio is bounded like a large one.
    with np.errstate(over="ignore"):
        advantages: FloatArray = np.maximum(-np.expm1(logp - mix_teachers(hinted)), MIN_ADVANTAGE)
    return advantages


class TeacherReplies(CreditMethod):
    """The terms of `method` on the policy's own replies, and the forward KL on those that a teacher sampled or guides.

    The term on the teacher's replies is E_{y~T} mean_t KL(T_t || pi_t), T the frozen base under the hinted prompt, over
    the teacher's `top` tokens and the tail; an importance ratio does not occur in it. Each reply counts the same: a
    policy that has learned to be brief would else learn most from the long replies to contrasts.

    A guided teacher is far from the policy on the policy's own replies, too: nearly every sampled token then has the
    lowest advantage, which says what to avoid and not what to do. So these replies have the same term.
    """

    uses_hints = True

    def __init__(self, method: CreditMethod, *, top: int) -> None:
        """`top`: N; 0: by the token of the reply alone (`SampledTeacherTerm`)."""
        self._method = method
        self.uses_reward = method.uses_reward
        self.topk_size = top
        self._teacher_term: TeacherTerm = SampledTeacherTerm()
        if top:
            self._teacher_term = TopKDistillation(
                name="teacher_replies",
                of="teacher",
                top=top,
                divergence="forward",
                cap=1.0,
                hint_choice="overlap",
                per_reply=True,
            )

    def loss_terms(
        self, evidence: BatchLogprobs, method_state: Mapping[str, Any]
    ) -> tuple[AnyTerm, ...]:
        """Return the terms of both kinds of replies; each has its own denominator."""
        sampled_terms = self._method.loss_terms(
            _without_signal(evidence, of_teacher=True), method_state
        )
        return (
            *sampled_terms,
            *self._teacher_term.loss_terms(
                _without_signal(evidence, of_teacher=False), method_state
            ),
        )

    def update_state(
        self, samples: Sequence[Sample], method_state: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the state of the method; a teacher's reply changes nothing in it."""
        return self._method.update_state([s for s in samples if not s.from_teacher], method_state)


def follows_teacher(sample: Sample) -> bool:
    """Return whether a sample has the term of the teacher's replies: the teacher sampled it, or it is of practice."""
    return sample.from_teacher or sample.guidance is not None


def _without_signal(evidence: BatchLogprobs, *, of_teacher: bool) -> BatchLogprobs:
    """Remove scores, hints and teachers of the samples of one kind, so that no term has them."""
    is_removed = [follows_teacher(sample) == of_teacher for sample in evidence.samples]
    return replace(
        evidence,
        samples=[
            replace(sample, reward=None, hinted_prompts=()) if out else sample
            for out, sample in zip(is_removed, evidence.samples, strict=True)
        ],
        teacher_logprobs=[
            () if out else logprobs
            for out, logprobs in zip(is_removed, evidence.teacher_logprobs, strict=True)
        ],
        # Empty without top log-probabilities.
        topk_scores=[
            TopKScores(student=scores.student, teachers=(), teacher_on_student_topk=())
            if out
            else scores
            for out, scores in zip(
                is_removed, evidence.topk_scores, strict=bool(evidence.topk_scores)
            )
        ],
    )
