"""Scoring of a batch under the policy, the frozen base and the teacher.

Shapes: B samples, R response tokens of one sample, N vocabulary tokens at each position.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from openclaw_rl.learner import scored_batch as scored
from openclaw_rl.learner.forward.lm_head import Picked
from openclaw_rl.learner.forward.packing import Row
from openclaw_rl.learner.forward.runner import Passes
from openclaw_rl.learner.loss.distillation import divergence
from openclaw_rl.learner.model.ema_teacher import Average
from openclaw_rl.learner.model.weights import Weights
from openclaw_rl.learner.scored_batch import Live, Scored
from openclaw_rl.learner.staleness import fresh_enough
from openclaw_rl.methods.types import Method, Sample
from openclaw_rl.settings.load import TrainConfig


class Sight:
    """Runs forward passes under the policy, the base or the teacher, each in the right module mode."""

    def __init__(self, weights: Weights, passes: Passes, train: TrainConfig, average: Average | None) -> None:
        """`average`: the EMA teacher; None means that the base is the teacher."""
        self._weights, self._passes, self._train, self._average = weights, passes, train, average

    def policy(self, rows: Sequence[Row], *, top: int = 0) -> list[Picked]:
        """Score rows under the current policy. For `top`, see `lm_head.select_tokens`."""
        self._weights.model.eval()
        return self._passes.look(rows, top=top)

    def base(self, rows: Sequence[Row], *, ids: Sequence[torch.Tensor] | None = None, top: int = 0) -> list[Picked]:
        """Score rows under the frozen base."""
        with self._weights.frozen():
            self._weights.model.eval()
            return self._passes.look(rows, ids=ids, top=top)

    def training(self) -> None:
        """Enable the adapter's dropout only. The base's dropout stays off, because replies are sampled without it."""
        self._weights.model.eval()
        for layer in self._weights.causal.modules():
            if (dropout := getattr(layer, "lora_dropout", None)) is not None:
                dropout.train()

    def scored(self, samples: Sequence[Sample], method: Method) -> tuple[Scored, dict[str, str]]:
        """Score a batch. Return it without stale turns, and the reason for each dropped turn."""
        rows = [scored.row_of(s) for s in samples]
        live, student = self._before(rows, method.top)
        bounds = {"max_gap": self._train.max_gap, "max_batch_gap": self._train.batch_gap}
        kept, dropped = fresh_enough(samples, [o.logp for o in student], **bounds)
        rows, samples, student = [rows[i] for i in kept], [samples[i] for i in kept], [student[i] for i in kept]
        hinted = scored.hinted(samples, times=self._train.teacher_temperature) if method.uses_hints else []
        base, seen = self._taught(rows, hinted, student, method.top)
        teachers: list[list[Picked]] = [[] for _ in samples]
        for (i, _), picked in zip(hinted, seen, strict=True):
            teachers[i].append(picked)
        return Scored(
            samples=samples,
            rows=rows,
            student=[o.logp for o in student],
            compared=self._compared(samples, student, [i for i, _ in hinted]),
            entropy=[o.entropy_K for o in student],
            base=[picked.logp for picked in base],
            teachers=[[t.logp for t in of] for of in teachers],
            tops=[scored.tops_of(o, of) for o, of in zip(student, teachers, strict=True)] if method.top else [],
            live=live.of(kept) if live and kept else None,
        ), dropped

    def _before(self, rows: Sequence[Row], top: int) -> tuple[Live | None, list[Picked]]:
        """Score the policy before the step, by the forward pass of the step itself if possible.

        That needs one epoch, one micro-batch, one rank and no dropout, and saves one pass for small batches.
        """
        random = self._weights.dropout > 0
        if self._train.epochs > 1 or random or self._passes.ranks > 1 or len(self._passes.groups(rows)) != 1:
            return None, self.policy(rows, top=top)
        self.training()
        read = self._passes.read(rows)
        picked = read.pick(top=top)
        self._weights.model.eval()
        logp = list(torch.split(picked.logp, list(read.lengths)))
        return Live(read=read, logp=logp), picked.split(read.lengths)

    def _compared(
        self, samples: Sequence[Sample], student: Sequence[Picked], taught: Sequence[int]
    ) -> list[torch.Tensor]:
        """Return the policy's log-probabilities, at the teacher temperature for samples that have a teacher."""
        out, times = [o.logp for o in student], self._train.teacher_temperature
        warm = sorted(set(taught)) if times != 1 else []
        rows = [scored.row_of(samples[i], times=times) for i in warm]
        for i, picked in zip(warm, self.policy(rows) if rows else [], strict=True):
            out[i] = picked.logp
        return out

    def _taught(
        self, rows: list[Row], hinted: Sequence[tuple[int, Row]], student: Sequence[Picked], top: int
    ) -> tuple[list[Picked], list[Picked]]:
        """Return (base on the plain rows, teacher on the hinted rows); one tree if the base is the teacher.

        With `top`, the teacher also scores the student's most likely tokens and returns its own.
        """
        prompts = [row for _, row in hinted]
        ids = [student[i].ids_KN[:, 1:] for i, _ in hinted]
        if self._average is not None:
            return self.base(rows), self._teacher(prompts, ids, top)
        whole = [o.ids_KN[:, 1:] for o in student] + ids
        seen = self.base([*rows, *prompts], ids=whole if top and hinted else None, top=top if hinted else 0)
        return seen[: len(rows)], seen[len(rows) :]

    def _teacher(self, rows: Sequence[Row], ids: Sequence[torch.Tensor], top: int) -> list[Picked]:
        """Score rows under the EMA teacher."""
        assert self._average is not None
        with self._average.standing():
            self._weights.model.eval()
            return self._passes.look(rows, ids=ids, top=top) if rows else []

    def teacher_follows(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Update the EMA teacher after a step, if its bound allows it. Return metrics.

        Distance: KL(base || teacher) per trainable token under the hints, over the base's `topk` tokens and the tail.
        """
        hinted = scored.hinted(samples)
        if self._average is None or not any(samples[i].mask.any() for i, _ in hinted):
            return {}
        masks_K = torch.cat([torch.from_numpy(samples[i].mask.astype(bool)) for i, _ in hinted])
        rows = [row for _, row in hinted]
        base = self.base(rows, top=self._train.topk)
        base_KN = torch.cat([picked.logps_KN[:, 1:] for picked in base])

        def distance() -> float:
            seen = self._teacher(rows, [picked.ids_KN[:, 1:] for picked in base], 0)
            theirs_KN = torch.cat([picked.logps_KN[:, 1:] for picked in seen])
            return divergence(theirs_KN, base_KN, "forward")[masks_K].mean().item()

        return self._average.follow(distance)
