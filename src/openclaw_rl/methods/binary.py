"""binary: the score minus a baseline, the same for every token of the reply (REINFORCE with a baseline)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from openclaw_rl.methods.baseline import Baseline
from openclaw_rl.methods.types import Evidence, Sample, Term


class Binary:
    """Advantage A = r - b for r in {+1, -1}. A sample without a score is in no term and in no denominator.

    A is not divided by the standard deviation, which is 0 when all scores agree; in a batch of four that is common.
    """

    uses_reward = True
    uses_hints = False
    top = 0

    def __init__(self, *, decay: float = 0.95, shrink: float = 8.0) -> None:
        self._decay = decay
        self._shrink = shrink

    def terms(self, evidence: Evidence, memory: Mapping[str, Any]) -> tuple[Term, ...]:
        """Return one term from the scores. b is the baseline before the batch."""
        baseline = Baseline(memory, decay=self._decay, shrink=self._shrink)
        advantages = [
            np.full(len(s.mask), 0.0 if s.reward is None else _checked(s) - baseline.read(s.agent))
            for s in evidence.samples
        ]
        masks = [s.mask & (s.reward is not None) for s in evidence.samples]
        return (Term(name="binary", weight=1.0, advantages=tuple(advantages), masks=tuple(masks)),)

    def remember(self, samples: Sequence[Sample], memory: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state with the batch's scores added to the averages."""
        verdicts = [(s.agent, s.reward) for s in samples if s.reward is not None]
        return Baseline(memory, decay=self._decay, shrink=self._shrink).updated(verdicts)


def _checked(sample: Sample) -> float:
    if sample.reward not in (1.0, -1.0):
        raise ValueError(f"turn {sample.turn}: expected a reward of +1, -1 or none, got {sample.reward}")
    return float(sample.reward)
