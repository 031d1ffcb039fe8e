"""Credit for batches in which the teacher sampled some of the replies, as practice on a lesson does.

A policy that is sure of itself never samples what a new hint asks for, so credit on its own replies cannot move it. On
replies that the hinted teacher sampled, the forward KL(teacher || policy) can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from openclaw_rl.methods.topk_distillation import TopKDistillation
from openclaw_rl.methods.types import AnyTerm, BatchLogprobs, CreditMethod, Sample, TopKScores


class TeacherReplies(CreditMethod):
    """The terms of `method` on the policy's own replies, and the forward KL on those that the teacher sampled.

    The term on the teacher's replies is E_{y~T} sum_t KL(T_t || pi_t), T the frozen base under the hinted prompt, over
    the teacher's `top` tokens and the tail; an importance ratio does not occur in it.
    """

    uses_hints = True

    def __init__(self, method: CreditMethod, *, top: int) -> None:
        self._method, self.uses_reward, self.topk_size = method, method.uses_reward, top
        self._teacher_term = TopKDistillation(
            name="teacher_replies", of="teacher", top=top, divergence="forward", cap=1.0, hint_choice="overlap"
        )

    def loss_terms(self, evidence: BatchLogprobs, memory: Mapping[str, Any]) -> tuple[AnyTerm, ...]:
        """Return the terms of both kinds of replies; each has its own denominator."""
        own = self._method.loss_terms(_without_signal(evidence, from_teacher=True), memory)
        return (*own, *self._teacher_term.loss_terms(_without_signal(evidence, from_teacher=False), memory))

    def update_state(self, samples: Sequence[Sample], memory: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of the method; a teacher's reply changes nothing in it."""
        return self._method.update_state([s for s in samples if not s.from_teacher], memory)


def _without_signal(evidence: BatchLogprobs, *, from_teacher: bool) -> BatchLogprobs:
    """Remove scores, hints and teachers of the samples of one kind, so that no term has them."""
    gone = [sample.from_teacher == from_teacher for sample in evidence.samples]
    rows = list(zip(gone, evidence.samples, evidence.teacher_logprobs, evidence.topk_scores, strict=True))
    return replace(
        evidence,
        samples=[replace(s, reward=None, hinted_prompts=()) if out else s for out, s, _, _ in rows],
        teacher_logprobs=[() if out else logprobs for out, _, logprobs, _ in rows],
        topk_scores=[
            TopKScores(student=scores.student, teachers=(), teacher_on_student_topk=()) if out else scores
            for out, _, _, scores in rows
        ],
    )
