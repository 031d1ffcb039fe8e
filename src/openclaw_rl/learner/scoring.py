"""Scoring of a batch under the policy, the frozen base and the teacher.

Shapes: B samples, R response tokens of one sample, N vocabulary tokens at each position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from openclaw_rl.common.progress import WorkKind
from openclaw_rl.learner.forward.lm_head import GuidedScores, TokenLogprobs
from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.forward.runner import ForwardRunner
from openclaw_rl.learner.loss import scored_batch as scored
from openclaw_rl.learner.loss.distillation import divergence
from openclaw_rl.learner.loss.scored_batch import ReusedForward, ScoredBatch
from openclaw_rl.learner.model.ema_teacher import EmaTeacher
from openclaw_rl.learner.model.weights import PolicyWeights
from openclaw_rl.learner.staleness import drop_stale
from openclaw_rl.methods.types import CreditMethod, LessonGap, Sample
from openclaw_rl.reasons import Reason
from openclaw_rl.settings.load import TrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class _GuidedRow:
    """Scores of a sample of practice under its plain prompt, and under the guided teacher."""

    plain: TokenLogprobs
    scores: GuidedScores


class PolicyScorer:
    """Runs forward passes under the policy, the base or the teacher, each in the right module mode."""

    def __init__(
        self,
        weights: PolicyWeights,
        runner: ForwardRunner,
        train: TrainConfig,
        ema_teacher: EmaTeacher | None,
    ) -> None:
        """`ema_teacher`: None means that the base is the teacher."""
        self._weights = weights
        self._runner = runner
        self._train = train
        self._ema_teacher = ema_teacher

    def policy_logprobs(
        self, rows: Sequence[TokenSequence], *, top: int = 0
    ) -> list[TokenLogprobs]:
        """Score rows under the current policy. For `top`, see `HiddenStates.token_logprobs`."""
        self._weights.model.eval()
        return self._runner.logprobs(rows, top=top)

    def base_logprobs(
        self,
        rows: Sequence[TokenSequence],
        *,
        ids: Sequence[torch.Tensor] | None = None,
        top: int = 0,
    ) -> list[TokenLogprobs]:
        """Score rows under the frozen base."""
        with self._weights.using_base():
            self._weights.model.eval()
            return self._runner.logprobs(rows, ids=ids, top=top)

    def set_training_mode(self) -> None:
        """Enable the adapter's dropout only. The base's dropout stays off, because replies are sampled without it."""
        self._weights.model.eval()
        for layer in self._weights.causal.modules():
            dropout = getattr(layer, "lora_dropout", None)
            if dropout is not None:
                dropout.train()

    def score_batch(
        self, samples: Sequence[Sample], method: CreditMethod
    ) -> tuple[ScoredBatch, dict[str, Reason]]:
        """Score a batch. Return it without stale turns, and the reason for each dropped turn."""
        top = method.topk_size
        rows = [scored.plain_sequence(sample) for sample in samples]
        reused, student = self._score_before_step(rows, top)
        safety = self._train.safety
        usable, dropped = drop_stale(
            samples,
            _logps(student),
            max_gap=safety.max_turn_log_ratio,
            max_batch_gap=safety.batch_log_ratio_limit,
        )
        rows = [rows[i] for i in usable]
        samples = [samples[i] for i in usable]
        student = [student[i] for i in usable]
        hinted: list[tuple[int, TokenSequence]] = []
        if method.uses_hints:
            times = self._train.distill.teacher_temperature
            hinted = scored.hinted_sequences(samples, times=times)
        guided = self._score_guided(samples, hinted, student, top)
        base, hinted_scores = self._base_and_teacher(rows, hinted, student, top, guided)
        teachers: list[list[TokenLogprobs]] = [[] for _ in samples]
        for (i, _), scores in zip(hinted, hinted_scores, strict=True):
            teachers[i].append(scores)
        batch = ScoredBatch(
            samples=samples,
            rows=rows,
            student=_logps(student),
            student_at_teacher_temperature=self._at_teacher_temperature(
                samples, student, [i for i, _ in hinted]
            ),
            entropy=_entropies(student),
            base=_logps(base),
            teachers=[_logps(of_row) for of_row in teachers],
            teacher_entropy=[_entropies(of_row) for of_row in teachers],
            tops=list(map(scored.topk_scores, student, teachers)) if top else [],
            reused_forward=reused.select_rows(usable) if reused and usable else None,
            lesson_gaps=_lesson_gaps(samples, student, guided),
        )
        return batch, dropped

    def _score_before_step(
        self, rows: Sequence[TokenSequence], top: int
    ) -> tuple[ReusedForward | None, list[TokenLogprobs]]:
        """Score the policy before the step, by the forward pass of the step itself if possible.

        That needs one epoch, one micro-batch, one rank and no dropout, and saves one pass for small batches.
        """
        several = self._train.batch.epochs > 1 or self._runner.world_size > 1
        if several or self._weights.dropout > 0 or len(self._runner.group_rows(rows)) != 1:
            return None, self.policy_logprobs(rows, top=top)
        self.set_training_mode()
        with self._runner.speed.measure_pass(WorkKind.SCORE, self._runner.pass_tokens(rows)):
            states = self._runner.hidden_states(rows)
            scores = states.token_logprobs(top=top)
        self._weights.model.eval()
        logp = list(torch.split(scores.logp, list(states.lengths)))
        return ReusedForward(hidden=states, logp=logp), scores.split_rows(states.lengths)

    def _at_teacher_temperature(
        self,
        samples: Sequence[Sample],
        student: Sequence[TokenLogprobs],
        with_teacher: Sequence[int],
    ) -> list[torch.Tensor]:
        """Return the policy's log-probabilities, at the teacher temperature for samples that have a teacher."""
        out = [scores.logp for scores in student]
        times = self._train.distill.teacher_temperature
        if times == 1 or not with_teacher:
            return out
        rescored = sorted(set(with_teacher))
        rows = [scored.plain_sequence(samples[i], times=times) for i in rescored]
        for i, scores in zip(rescored, self.policy_logprobs(rows), strict=True):
            out[i] = scores.logp
        return out

    def _base_and_teacher(
        self,
        rows: Sequence[TokenSequence],
        hinted: Sequence[tuple[int, TokenSequence]],
        student: Sequence[TokenLogprobs],
        top: int,
        guided: Mapping[int, _GuidedRow],
    ) -> tuple[list[TokenLogprobs], list[TokenLogprobs]]:
        """Return (base on the plain rows, teacher on the hinted rows); one tree if the base is the teacher.

        With `top`, the teacher also scores the student's most likely tokens and returns its own. Rows in `guided` are
        not scored again.
        """
        prompts: list[TokenSequence] = []
        ids: list[torch.Tensor] = []
        for i, row in hinted:
            if i not in guided:
                prompts.append(row)
                ids.append(_likeliest_ids(student[i]))
        plain = list(range(len(rows)))
        if self._ema_teacher is not None:
            base = self.base_logprobs(rows)
            teacher = self._teacher_logprobs(prompts, ids, top)
        else:
            plain = [i for i in plain if i not in guided]
            plain_ids = [_likeliest_ids(student[i]) for i in plain]
            base, teacher = self._base_as_teacher(
                [rows[i] for i in plain], prompts, plain_ids + ids, top
            )
        base_by_row = {i: row.plain for i, row in guided.items()}
        base_by_row.update(zip(plain, base, strict=True))
        rest = iter(teacher)
        all_teachers = []
        for i, _ in hinted:
            scores = guided[i].scores.teacher if i in guided else next(rest)
            all_teachers.append(scores)
        return [base_by_row[i] for i in range(len(rows))], all_teachers

    def _base_as_teacher(
        self,
        plain: Sequence[TokenSequence],
        prompts: Sequence[TokenSequence],
        ids: Sequence[torch.Tensor] | None,
        top: int,
    ) -> tuple[list[TokenLogprobs], list[TokenLogprobs]]:
        """Return the scores of the base on plain and on hinted rows, in one pass.

        `ids`: tokens of each row that are scored as well if there are hinted rows and `top` is not 0.
        """
        if not top or not prompts:
            ids = None
            top = 0
        scores = self.base_logprobs([*plain, *prompts], ids=ids, top=top)
        return scores[: len(plain)], scores[len(plain) :]

    def _score_guided(
        self,
        samples: Sequence[Sample],
        hinted: Sequence[tuple[int, TokenSequence]],
        student: Sequence[TokenLogprobs],
        top: int,
    ) -> dict[int, _GuidedRow]:
        """Return the scores of the samples of practice, by row number.

        The teacher is the EMA teacher if there is one, else the base; the plain row is scored by the same model.
        """
        numbers = []
        rows = []
        guidance = []
        for i, row in hinted:
            strength = samples[i].guidance
            if strength is not None:
                numbers.append(i)
                rows.append(row)
                guidance.append(strength)
        if not numbers:
            return {}
        plain = [scored.plain_sequence(samples[i]) for i in numbers]
        ids = [_likeliest_ids(student[i]) for i in numbers] if top else None
        model = (
            self._weights.using_base()
            if self._ema_teacher is None
            else self._ema_teacher.swapped_in()
        )
        with model:
            self._weights.model.eval()
            pairs = self._runner.guided_scores(rows, plain, guidance, ids=ids, top=top)
        guided = {}
        for i, (plain_scores, scores) in zip(numbers, pairs, strict=True):
            guided[i] = _GuidedRow(plain=plain_scores, scores=scores)
        return guided

    def _teacher_logprobs(
        self, rows: Sequence[TokenSequence], ids: Sequence[torch.Tensor], top: int
    ) -> list[TokenLogprobs]:
        """Score rows under the EMA teacher."""
        assert self._ema_teacher is not None
        with self._ema_teacher.swapped_in():
            self._weights.model.eval()
            return self._runner.logprobs(rows, ids=ids, top=top) if rows else []

    def update_teacher(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Update the EMA teacher after a step, if its bound allows it. Return metrics.

        Distance: KL(base || teacher) per trainable token under the hints, over the base's `topk` tokens and the tail.
        """
        if self._ema_teacher is None:
            return {}
        hinted = scored.hinted_sequences(samples)
        masks = [torch.from_numpy(samples[i].mask.astype(bool)) for i, _ in hinted]
        if not any(mask.any() for mask in masks):
            return {}
        mask_K = torch.cat(masks)
        rows = [row for _, row in hinted]
        base = self.base_logprobs(rows, top=self._train.distill.topk)
        ids = [_likeliest_ids(scores) for scores in base]
        base_KN = _likeliest_logprobs(base)

        def base_teacher_kl() -> float:
            teacher_KN = _likeliest_logprobs(self._teacher_logprobs(rows, ids, 0))
            return divergence(teacher_KN, base_KN, "forward")[mask_K].mean().item()

        return self._ema_teacher.follow_policy(base_teacher_kl)


def _likeliest_ids(scores: TokenLogprobs) -> torch.Tensor:
    """Return the ids [R, N] of the most likely tokens, without the token of the reply."""
    return scores.ids_KN[:, 1:]


def _likeliest_logprobs(scores: Sequence[TokenLogprobs]) -> torch.Tensor:
    """Return the log-probabilities [K, N] of these tokens, of all rows."""
    return torch.cat([of_row.logps_KN[:, 1:] for of_row in scores])


def _logps(scores: Sequence[TokenLogprobs]) -> list[torch.Tensor]:
    return [of_row.logp for of_row in scores]


def _entropies(scores: Sequence[TokenLogprobs]) -> list[torch.Tensor]:
    return [of_row.entropy_K for of_row in scores]


def _lesson_gaps(
    samples: Sequence[Sample],
    student: Sequence[TokenLogprobs],
    guided: Mapping[int, _GuidedRow],
) -> dict[int, LessonGap]:
    gaps = {}
    for i, row in guided.items():
        gaps[i] = scored.lesson_gap(samples[i], student[i], row.plain, row.scores)
    return gaps
