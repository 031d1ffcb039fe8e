"""binary: the score minus a baseline, the same for every token of the reply (REINFORCE with a baseline)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from openclaw_rl.methods.baseline import ScoreBaseline
from openclaw_rl.methods.spec import MethodSettings, MethodSpec
from openclaw_rl.methods.types import BatchLogprobs, CreditMethod, PolicyGradientTerm, Sample


class BinaryMethod(CreditMethod):
    """Advantage A = w (r - b) for r in {+1, -1} of weight w. A sample without a score is in no term or denominator.

    A is not divided by the standard deviation, which is 0 when all scores agree; in a batch of four that is common.
    """

    uses_reward = True

    def __init__(self, *, decay: float = 0.95, shrink: float = 8.0) -> None:
        self._decay = decay
        self._shrink = shrink

    def loss_terms(
        self, evidence: BatchLogprobs, method_state: Mapping[str, Any]
    ) -> tuple[PolicyGradientTerm, ...]:
        """Return one term from the scores. b is the baseline before the batch."""
        baseline = ScoreBaseline(method_state, decay=self._decay, shrink=self._shrink)
        advantages = [
            np.full(
                len(s.mask),
                0.0
                if s.reward is None
                else s.weight * (_checked_reward(s) - baseline.read(s.agent)),
            )
            for s in evidence.samples
        ]
        masks = [s.mask & (s.reward is not None) for s in evidence.samples]
        return (
            PolicyGradientTerm(
                name="binary", weight=1.0, advantages=tuple(advantages), masks=tuple(masks)
            ),
        )

    def update_state(
        self, samples: Sequence[Sample], method_state: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the state with the batch's scores added to the averages.

        Scores of a person whose evidence is set aside add less, or nothing: the averages are common to all.
        """
        verdicts = [
            (s.agent, s.reward, s.weight * s.common_weight)
            for s in samples
            if s.reward is not None and s.common_weight > 0
        ]
        return ScoreBaseline(method_state, decay=self._decay, shrink=self._shrink).updated_state(
            verdicts
        )


def _checked_reward(sample: Sample) -> float:
    if sample.reward not in (1.0, -1.0):
        raise ValueError(
            f"turn {sample.turn}: expected a reward of +1, -1 or none, got {sample.reward}"
        )
    return float(sample.reward)


def make_binary(train: MethodSettings) -> BinaryMethod:
    """Return the binary term that the settings describe; `combine` has the same."""
    return BinaryMethod(decay=train.loss.baseline_decay, shrink=train.loss.baseline_shrink)


def _create(train: MethodSettings) -> BinaryMethod:
    teacher = train.distill
    if teacher.teacher != "base" or teacher.teacher_temperature != 1 or teacher.target != "token":
        raise ValueError(
            "train.distill.teacher, train.distill.target and train.distill.teacher_temperature are of a teacher, and "
            "train.method binary has none. Leave them out, or say combine or opd"
        )
    return make_binary(train)


SPEC = MethodSpec(name="binary", summary="the score of each turn", create=_create)
