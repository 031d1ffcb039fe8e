"""opd: on-policy distillation from the model prompted with the hint, on the tokens that the student sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from openclaw_rl.methods.hint_selection import (
    FloatArray,
    HintChoice,
    choose_hints,
    mean_overlap,
    mix_teachers,
)
from openclaw_rl.methods.spec import MethodSettings, MethodSpec
from openclaw_rl.methods.topk_distillation import TopKDistillation, make_topk
from openclaw_rl.methods.types import BatchLogprobs, CreditMethod, PolicyGradientTerm, Sample
from openclaw_rl.types import Logprobs


class OpdMethod(CreditMethod):
    """A_t = clip(T_t - o_t, -C, +C): the sampled-token estimate of the reverse KL's gradient (arXiv:2603.10165).

    T is the frozen base under the hinted prompt, o the current policy under the plain prompt, both with the same code,
    precision and temperature. A sample without a hint is in no term and in no denominator. With several hints, T is
    their even mixture at each token, or the teacher whose top tokens overlap most with the student's.
    """

    uses_hints = True

    def __init__(
        self, *, clip: float = 1.0, hint_choice: HintChoice = "mixture", top: int = 0
    ) -> None:
        """`top`: number of top tokens that the overlap compares."""
        self._clip = clip
        self._hint_choice = hint_choice
        self.topk_size = top if hint_choice == "overlap" else 0

    def loss_terms(
        self, evidence: BatchLogprobs, method_state: Mapping[str, Any]
    ) -> tuple[PolicyGradientTerm, ...]:
        """Return one term over the samples with hints."""
        followed, metrics = self._selected_teachers(evidence)
        triples = list(zip(evidence.samples, evidence.student_logprobs, followed, strict=True))
        advantages = tuple(self._token_advantages(s, o, hinted) for s, o, hinted in triples)
        masks = tuple(s.mask & bool(hinted) for s, _, hinted in triples)
        return (
            PolicyGradientTerm(
                name="opd", weight=1.0, advantages=advantages, masks=masks, metrics=metrics
            ),
        )

    def _selected_teachers(
        self, evidence: BatchLogprobs
    ) -> tuple[Sequence[Sequence[Logprobs]], dict[str, float]]:
        """Return the selected teachers of each sample, and metrics of the selection."""
        if self._hint_choice == "mixture":
            return evidence.teacher_logprobs, {}
        followed: list[Sequence[Logprobs]] = []
        shares: list[FloatArray] = [np.zeros(0)]
        for sample, hinted, tops in zip(
            evidence.samples, evidence.teacher_logprobs, evidence.topk_scores, strict=True
        ):
            hints = choose_hints(tops, sample.mask, self._hint_choice)
            followed.append([hinted[i] for i in hints])
            shares += [mean_overlap(tops, hints, sample.mask)] if hints else []
        overlaps = np.concatenate(shares)
        return followed, {"overlap": float(overlaps.mean())} if len(overlaps) else {}

    def _token_advantages(
        self, sample: Sample, o: Logprobs, hinted: Sequence[Logprobs]
    ) -> FloatArray:
        lengths = [len(o), *(len(t) for t in hinted)]
        if set(lengths) != {len(sample.mask)}:
            raise ValueError(
                f"turn {sample.turn}: expected {len(sample.mask)} log-probabilities from student and teachers each, "
                f"got {lengths}"
            )
        if not hinted:
            return np.zeros(len(o))
        advantage: FloatArray = np.clip(mix_teachers(hinted) - o, -self._clip, self._clip)
        return advantage


def make_opd(train: MethodSettings) -> OpdMethod | TopKDistillation:
    """Return the distillation term that the settings describe; `combine` has the same."""
    options = train.distill
    match options.target:
        case "student_topk":
            return make_topk(train, "student", "opd")
        case "teacher_topk":
            return make_topk(train, "teacher", "opd")
    return OpdMethod(
        clip=options.opd_clip, hint_choice=options.hint_choice or "mixture", top=options.topk
    )


SPEC = MethodSpec(name="opd", summary="distillation from hints", create=make_opd)
