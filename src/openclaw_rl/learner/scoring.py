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
from openclaw_rl.methods.types import CreditMethod, Sample
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
            if (dropout := getattr(layer, "lora_dropout", None)) is not None:
                dropout.train()

    def score_batch(
        self, samples: Sequence[Sample], method: CreditMethod
    ) -> tuple[ScoredBatch, dict[str, Reason]]:
        """Score a batch. Return it without stale turns, and the reason for each dropped turn."""
        rows = [scored.plain_sequence(s) for s in samples]
        reused, student = self._score_before_step(rows, method.topk_size)
        safety = self._train.safety
        times = self._train.distill.teacher_temperature
        usable, dropped = drop_stale(
            samples,
            [o.logp for o in student],
            max_gap=safety.max_turn_log_ratio,
            max_batch_gap=safety.batch_log_ratio_limit,
        )
        rows = [rows[i] for i in usable]
        samples = [samples[i] for i in usable]
        student = [student[i] for i in usable]
        hinted = scored.hinted_sequences(samples, times=times) if method.uses_hints else []
        guided = self._score_guided(samples, hinted, student, method.topk_size)
        base, hinted_scores = self._base_and_teacher(
            rows, hinted, student, method.topk_size, guided
        )
        teachers: list[list[TokenLogprobs]] = [[] for _ in samples]
        for (i, _), scores in zip(hinted, hinted_scores, strict=True):
            teachers[i].append(scores)
        pairs = zip(student, teachers, strict=True)
        return ScoredBatch(
            samples=samples,
            rows=rows,
            student=[o.logp for o in student],
            student_at_teacher_temperature=self._at_teacher_temperature(
                samples, student, [i for i, _ in hinted]
            ),
            entropy=[o.entropy_K for o in student],
            base=[scores.logp for scores in base],
            teachers=[[t.logp for t in of] for of in teachers],
            teacher_entropy=[[t.entropy_K for t in of] for of in teachers],
            tops=[scored.topk_scores(o, of) for o, of in pairs] if method.topk_size else [],
            reused_forward=reused.select_rows(usable) if reused and usable else None,
            lesson_gaps={
                i: scored.lesson_gap(samples[i], student[i], row.plain, row.scores)
                for i, row in guided.items()
            },
        ), dropped

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
        out = [o.logp for o in student]
        times = self._train.distill.teacher_temperature
        rescored = sorted(set(with_teacher)) if times != 1 else []
        rows = [scored.plain_sequence(samples[i], times=times) for i in rescored]
        for i, scores in zip(rescored, self.policy_logprobs(rows) if rows else [], strict=True):
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
        others = [(i, row) for i, row in hinted if i not in guided]
        plain = [i for i in range(len(rows)) if i not in guided or self._ema_teacher is not None]
        prompts = [row for _, row in others]
        ids = [student[i].ids_KN[:, 1:] for i, _ in others]
        if self._ema_teacher is not None:
            base = self.base_logprobs(rows)
            teacher = self._teacher_logprobs(prompts, ids, top)
        else:
            whole = [student[i].ids_KN[:, 1:] for i in plain] + ids
            scores = self.base_logprobs(
                [*(rows[i] for i in plain), *prompts],
                ids=whole if top and others else None,
                top=top if others else 0,
            )
            base = scores[: len(plain)]
            teacher = scores[len(plain) :]
        base_by_row = {i: row.plain for i, row in guided.items()} | dict(
            zip(plain, base, strict=True)
        )
        rest = iter(teacher)
        all_teachers = [guided[i].scores.teacher if i in guided else next(rest) for i, _ in hinted]
        return [base_by_row[i] for i in range(len(rows))], all_teachers

    def _score_guided(
        self, samples: Sequence[Sample], hinted: Sequence[tuple[int, TokenSequence]], student: Sequence[TokenLogprobs],
        top: int,
    ) -> dict[int, _GuidedRow]:  # fmt: skip
        """Return the scores of the samples of practice, by row number.

        The teacher is the EMA teacher if there is one, else the base; the plain row is scored by the same model.
        """
        places = []
        for i, row in hinted:
            guidance = samples[i].guidance
            if guidance is not None:
                places.append((i, row, guidance))
        if not places:
            return {}
        plain = [scored.plain_sequence(samples[i]) for i, _, _ in places]
        ids = [student[i].ids_KN[:, 1:] for i, _, _ in places]
        model = (
            self._weights.using_base()
            if self._ema_teacher is None
            else self._ema_teacher.swapped_in()
        )
        with model:
            self._weights.model.eval()
            pairs = self._runner.guided_scores(
                [row for _, row, _ in places],
                plain,
                [of for _, _, of in places],
                ids=ids if top else None,
                top=top,
            )
        return {
            i: _GuidedRow(plain=plain_scores, scores=scores)
            for (i, _, _), (plain_scores, scores) in zip(places, pairs, strict=True)
        }

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
        hinted = scored.hinted_sequences(samples)
        if self._ema_teacher is None or not any(samples[i].mask.any() for i, _ in hinted):
            return {}
        masks_K = torch.cat([torch.from_numpy(samples[i].mask.astype(bool)) for i, _ in hinted])
        rows = [row for _, row in hinted]
        base = self.base_logprobs(rows, top=self._train.distill.topk)
        base_KN = torch.cat([scores.logps_KN[:, 1:] for scores in base])

        def base_teacher_kl() -> float:
            teacher = self._teacher_logprobs(rows, [scores.ids_KN[:, 1:] for scores in base], 0)
            teacher_KN = torch.cat([scores.logps_KN[:, 1:] for scores in teacher])
            return divergence(teacher_KN, base_KN, "forward")[masks_K].mean().item()

        return self._ema_teacher.follow_policy(base_teacher_kl)
