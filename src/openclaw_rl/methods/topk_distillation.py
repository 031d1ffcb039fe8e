"""Distillation from the model prompted with the hint, over the top-k tokens at each position.

`opd` learns from the sampled token only. This compares both distributions: the divergence over N + 1 bins, which are N
tokens and the rest of the vocabulary as one tail, with its exact gradient (no sampling noise).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from openclaw_rl.methods.hint_selection import (
    FloatArray,
    HintChoice,
    choose_hints,
    mean_overlap,
    mix_teachers,
)
from openclaw_rl.methods.spec import MethodSettings, MethodSpec
from openclaw_rl.methods.types import (
    BatchLogprobs,
    CreditMethod,
    DistillTerm,
    Divergence,
    Sample,
    TopKLogprobs,
    TopKScores,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SampleTargets:
    """Target and metrics of one sample with hints."""

    targets: TopKLogprobs
    has_gradient: bool
    overlap: FloatArray  # [tokens of the mask]
    tail_mass: FloatArray  # [tokens of the mask]: the probability of all other tokens


class TopKDistillation(CreditMethod):
    """The divergence between the teacher T (hinted prompt) and the policy pi (plain prompt) at each position.

    `of` "student": over the student's N top tokens (SDPO, arXiv:2601.20802); "teacher": over the teacher's (SDFT,
    arXiv:2601.19897). A sample without a hint is in no term and in no denominator.
    """

    uses_hints = True

    def __init__(
        self,
        *,
        name: str,
        of: Literal["student", "teacher"],
        top: int,
        divergence: Divergence,
        cap: float,
        hint_choice: HintChoice,
        per_reply: bool = False,
    ) -> None:
        """`top`: N; `per_reply`: see `DistillTerm`.

        Raises `ValueError` for a mixture of teachers over the teacher's top tokens.
        """
        if of == "teacher" and hint_choice == "mixture":
            raise ValueError(
                "train.distill.hint_choice mixture: each hinted teacher has likeliest tokens of its own, and there is "
                "no mixture over them. Say overlap, or train.distill.target=student_topk (train.method=sdpo)"
            )
        self.topk_size = top
        self._name = name
        self._topk_source = of
        self._divergence = divergence
        self._ratio_clip = cap
        self._hint_choice = hint_choice
        self._per_reply = per_reply

    def loss_terms(
        self, evidence: BatchLogprobs, method_state: Mapping[str, Any]
    ) -> tuple[DistillTerm, ...]:
        """Return one term over the samples with hints."""
        columns = (
            evidence.samples,
            evidence.student_logprobs,
            evidence.teacher_logprobs,
            evidence.topk_scores,
        )
        parts = [
            self._sample_targets(s, o, hinted, tops) if hinted else None
            for s, o, hinted, tops in zip(*columns, strict=True)
        ]
        pairs = list(zip(evidence.samples, parts, strict=True))
        return (
            DistillTerm(
                name=self._name,
                weight=1.0,
                targets=tuple(None if part is None else part.targets for part in parts),
                masks=tuple(s.mask & (part is not None) for s, part in pairs),
                divergence=self._divergence,
                ratio_clip=self._ratio_clip,
                per_reply=self._per_reply,
                has_gradient=any(part.has_gradient for part in parts if part),
                metrics=_mean_metrics([part for part in parts if part]),
            ),
        )

    def _sample_targets(
        self, sample: Sample, o: FloatArray, hinted: Sequence[FloatArray], tops: TopKScores
    ) -> _SampleTargets:
        mask = sample.mask
        lengths = [len(seen.ids) for seen in (tops.student, *tops.teachers)]
        if set(lengths) != {len(mask)}:
            raise ValueError(
                f"turn {sample.turn}: expected likeliest tokens at {len(mask)} positions, got {lengths}"
            )
        hints = choose_hints(tops, mask, self._hint_choice)
        if self._topk_source == "student":
            support = TopKLogprobs(
                ids=tops.student.ids,
                logprobs=mix_teachers([tops.teacher_on_student_topk[i] for i in hints]),
            )
            support_model = tops.student
        else:
            support = support_model = tops.teachers[hints[0]]
        return _SampleTargets(
            targets=support,
            has_gradient=any(bool(np.any(hinted[i][mask] != o[mask])) for i in hints),
            overlap=mean_overlap(tops, hints, mask),
            tail_mass=(1 - np.exp(support_model.logprobs.astype(np.float64)).sum(axis=1)).clip(
                min=0
            )[mask],
        )


def _mean_metrics(parts: Sequence[_SampleTargets]) -> dict[str, float]:
    """Return the metrics, averaged over the tokens of all samples with hints."""
    if not any(len(part.tail_mass) for part in parts):
        return {}
    return {
        "overlap": float(np.concatenate([part.overlap for part in parts]).mean()),
        "tail": float(np.concatenate([part.tail_mass for part in parts]).mean()),
    }


def make_topk(
    train: MethodSettings, of: Literal["student", "teacher"], name: str
) -> TopKDistillation:
    """Return distillation over the top-k tokens of `of`; `name` labels its metrics."""
    options = train.distill
    if options.teacher_temperature != 1:
        raise ValueError(
            "train.distill.teacher_temperature is for the token that was sampled; over the likeliest tokens a softer "
            "teacher would be another target. Leave it at 1, or set train.distill.target token (train.method combine "
            "or opd)"
        )
    return TopKDistillation(
        name=name,
        of=of,
        top=options.topk,
        divergence=options.divergence,
        cap=options.ratio_clip,
        hint_choice=options.hint_choice or "overlap",
    )


def _make_alone(
    train: MethodSettings, of: Literal["student", "teacher"], name: str
) -> TopKDistillation:
    if train.distill.target != "token":
        raise ValueError(
            f"train.distill.target is of opd and combine; train.method {name} says already what is compared. "
            "Leave it out"
        )
    if train.loss.surrogate != "clip" or train.loss.sequence_mask == "opsm":
        raise ValueError(
            f"train.loss.surrogate and train.loss.sequence_mask opsm work on advantages, and train.method {name} "
            "has none. Leave them out, or say combine with train.distill.target student_topk"
        )
    if train.loss.path is not None:
        raise ValueError(
            f"train.loss.path: a loss of your own works on the sampled tokens, and train.method {name} would be "
            "without effect. Say train.method combine, or unset train.loss.path"
        )
    return make_topk(train, of, name)


SDPO_SPEC = MethodSpec(
    name="sdpo",
    summary="distillation over the top-k of the student",
    create=lambda train: _make_alone(train, "student", "sdpo"),
)
SDFT_SPEC = MethodSpec(
    name="sdft",
    summary="distillation over the top-k of the teacher",
    create=lambda train: _make_alone(train, "teacher", "sdft"),
)
