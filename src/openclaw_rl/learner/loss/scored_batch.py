"""Scores of a batch before its step: log-probabilities under the policy, the frozen base and the teachers.

Shapes: B samples, R response tokens of one sample, N most likely tokens at each position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from openclaw_rl.learner.forward.lm_head import GuidedScores, HiddenStates, TokenLogprobs
from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.methods.types import BatchLogprobs, LessonGap, Sample, TopKLogprobs, TopKScores


@dataclass(frozen=True, slots=True, kw_only=True)
class ReusedForward:
    """Forward pass of the step itself, reused as the scores before the step."""

    hidden: HiddenStates
    logp: list[torch.Tensor]  # [R] per row, with the autograd graph

    def select_rows(self, rows: Sequence[int]) -> ReusedForward:
        """Return the given rows, in that order."""
        return ReusedForward(
            hidden=self.hidden.select_rows(rows), logp=[self.logp[i] for i in rows]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredBatch:
    """Samples of a batch and their scores; each list has B entries."""

    samples: list[Sample]
    rows: list[TokenSequence]
    student: list[torch.Tensor]  # [R] log-probabilities under the policy before the step
    # [R] the same at the temperature of the teachers.
    student_at_teacher_temperature: list[torch.Tensor]
    entropy: list[torch.Tensor]  # [R] nats
    base: list[torch.Tensor]  # [R] log-probabilities under the base, plain prompt
    # [R] per hint: log-probabilities under the teacher, hinted prompt.
    teachers: list[list[torch.Tensor]]
    teacher_entropy: list[list[torch.Tensor]]  # [R] per hint, nats
    tops: list[TopKScores]  # empty when the method uses no top-k
    reused_forward: ReusedForward | None = None
    # By row, of the samples of practice.
    lesson_gaps: Mapping[int, LessonGap] = field(default_factory=dict)

    def sampled_logprobs(self, i: int) -> torch.Tensor:
        """Return the log-probabilities at sampling time, [R] float32.

        For a teacher's reply those of the policy before the step: its loss is an expectation over the teacher's replies
        and needs no importance ratio, so the ratio is 1.
        """
        if self.samples[i].from_teacher:
            return self.student[i].float()
        return torch.from_numpy(self.samples[i].logprobs.astype("float32"))

    def gaps_by_turn(self) -> dict[str, LessonGap]:
        """Return, by turn of practice, how far the policy was from the lesson before the step."""
        return {
            self.samples[i].turn: gap
            for i, gap in self.lesson_gaps.items()
            if self.samples[i].mask.any()
        }

    def trainable_tokens(self, members: Sequence[int]) -> list[int]:
        """Return the number of trainable tokens of each sample."""
        return [int(self.samples[i].mask.sum()) for i in members]

    def batch_logprobs(self) -> BatchLogprobs:
        """Return the scores in the form that a method takes."""
        return BatchLogprobs(
            samples=self.samples,
            student_logprobs=[o.numpy() for o in self.student_at_teacher_temperature],
            teacher_logprobs=[[t.numpy() for t in of] for of in self.teachers],
            topk_scores=self.tops,
        )


def check_token_ids(samples: Sequence[Sample], vocabulary: int) -> None:
    """Raise `ValueError` for a token id outside the vocabulary; on a GPU it would break the CUDA context."""
    for s in samples:
        ids = np.concatenate([s.prompt_ids, s.response_ids, *s.hinted_prompts])
        if ids.min() < 0 or ids.max() >= vocabulary:
            wrong = ids[(ids < 0) | (ids >= vocabulary)][0]
            raise ValueError(
                f"turn {s.turn}: expected tokens from 0 to {vocabulary - 1}, got {wrong}"
            )


def lesson_gap(
    sample: Sample, student: TokenLogprobs, plain: TokenLogprobs, guided: GuidedScores
) -> LessonGap:
    """Return how far the policy is from the guided teacher in the direction of the hint.

    The preference of a distribution q is E_q[h - p], with h and p the log-probabilities with and without the hint. It
    is 0 or less without the hint and largest under the guided teacher. What the policy gained is measured over the
    `student`'s top k and one tail; `plain` has the scores of the same tokens without the hint.
    """
    mask = torch.from_numpy(sample.mask.astype(bool))
    top = student.ids_KN.shape[1]
    preferences_RN = torch.cat(
        [guided.preferences_KN[:, 1:top], guided.preferences_KN[:, -1:]], dim=-1
    ).double()
    gained_RN = _with_rest(student.logps_KN[:, 1:top]) - _with_rest(plain.logps_KN[:, 1:top])
    gained = (gained_RN * preferences_RN).sum(-1)[mask].sum().item()
    effect = (guided.teacher_K.double() - guided.plain_K.double())[mask].sum().item()
    return LessonGap(missing=effect - gained, effect=effect)


def _with_rest(logps_RN: torch.Tensor) -> torch.Tensor:
    """Return the probabilities [R, N + 1] of N tokens and of all others."""
    probabilities_RN = logps_RN.double().exp()
    return torch.cat(
        [probabilities_RN, (1 - probabilities_RN.sum(-1, keepdim=True)).clamp(min=0)], dim=-1
    )


def topk_scores(student: TokenLogprobs, teachers: Sequence[TokenLogprobs]) -> TopKScores:
    """Return top-k scores. Columns: the reply token, the student's top k, then (teachers only) the teacher's own."""
    n = student.ids_KN.shape[1]
    return TopKScores(
        student=_topk_logprobs(student, 1, n),
        teachers=tuple(_topk_logprobs(teacher, n, 2 * n - 1) for teacher in teachers),
        teacher_on_student_topk=tuple(teacher.logps_KN[:, 1:n].numpy() for teacher in teachers),
    )


def _topk_logprobs(scores: TokenLogprobs, start: int, end: int) -> TopKLogprobs:
    ids_RN = scores.ids_KN[:, start:end].numpy().astype(np.int32)
    return TopKLogprobs(ids=ids_RN, logprobs=scores.logps_KN[:, start:end].numpy())


def plain_sequence(sample: Sample, *, times: float = 1.0) -> TokenSequence:
    """Return the sample with its plain prompt; its temperature is multiplied by `times`."""
    return TokenSequence(
        prompt_ids=sample.prompt_ids,
        response_ids=sample.response_ids,
        temperature=sample.temperature * times,
    )


def hinted_sequences(
    samples: Sequence[Sample], *, times: float = 1.0
) -> list[tuple[int, TokenSequence]]:
    """Return (sample index, sequence with the hinted prompt) for each hint."""
    return [
        (
            i,
            TokenSequence(
                prompt_ids=prompt, response_ids=s.response_ids, temperature=s.temperature * times
            ),
        )
        for i, s in enumerate(samples)
        for prompt in s.hinted_prompts
    ]
