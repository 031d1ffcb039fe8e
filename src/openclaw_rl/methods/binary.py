"""binary: the score less a baseline, the same for every token of the reply (REINFORCE with a baseline)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from openclaw_rl.methods.baseline import Baseline
from openclaw_rl.methods.types import Evidence, Sample, Term


class Binary:
    """A = r - b for r in {+1, -1}. A sample without a score is in no term and in no denominator.

    No division by a standard deviation: it is 0 when all agree, which in a batch of four is common.
    """

    uses_reward = True
    uses_hints = False
    top = 0

    def __init__(self, *, decay: float = 0.95, shrink: float = 8.0) -> None:
        self._decay = decay
        self._shrink = shrink

    def terms(self, evidence: Evidence, memory: Mapping[str, Any]) -> tuple[Term, ...]:
        """One term, of the scores alone. b is read once, before the batch."""
        baseline = Baseline(memory, decay=self._decay, shrink=self._shrink)
        advantages = [
            np.full(len(s.mask), 0.0 if s.reward is None else _checked(s) - baseline.read(s.agent))
            for s in evidence.samples
        ]
        masks = [s.mask & (s.reward is not None) for s in evidence.samples]
        return (Term(name="binary", weight=1.0, advantages=tuple(advantages), masks=tuple(masks)),)

    def remember(self, samples: Sequence[Sample], memory: Mapping[str, Any]) -> dict[str, Any]:
        """The memory after the batch: its scores are in the averages."""
        verdicts = [(s.agent, s.reward) for s in samples if s.reward is not None]
        return Baseline(memory, decay=self._decay, shrink=self._shrink).updated(verdicts)


def _checked(sample: Sample) -> float:
    if sample.reward not in (1.0, -1.0):
        raise ValueError(f"turn {sample.turn}: expected a reward of +1, -1 or none, got {sample.reward}")
    return float(sample.reward)
