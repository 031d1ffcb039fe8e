"""opd: on-policy distillation from the model that was told the hint, on the tokens that the student sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from openclaw_rl.credit import Evidence, Sample, Term
from openclaw_rl.types import Logprobs


class Opd:
    """A_t = clip(T_t - o_t, -C, +C): the sampled-token estimate of the reverse KL's gradient (arXiv:2603.10165).

    T is the frozen base under the hinted prompt, o the current policy under the plain one: the same code, precision
    and temperature. A sample without a hint is in no term and in no denominator. Of several hints, T is their even
    mixture, token by token, which is a distribution again: what the student can come to rest at.
    """

    uses_reward = False
    uses_hints = True

    def __init__(self, *, clip: float = 1.0) -> None:
        self._clip = clip

    def terms(self, evidence: Evidence, memory: Mapping[str, Any]) -> tuple[Term, ...]:
        """One term, where there are hints."""
        triples = list(zip(evidence.samples, evidence.student, evidence.teachers, strict=True))
        advantages = tuple(self._advantage(s, o, hinted) for s, o, hinted in triples)
        masks = tuple(s.mask & bool(hinted) for s, _, hinted in triples)
        return (Term(name="opd", weight=1.0, advantages=advantages, masks=masks),)

    def remember(self, samples: Sequence[Sample], memory: Mapping[str, Any]) -> dict[str, Any]:
        """Nothing to remember."""
        return dict(memory)

    def _advantage(self, sample: Sample, o: Logprobs, hinted: Sequence[Logprobs]) -> Logprobs:
        lengths = [len(o), *(len(t) for t in hinted)]
        if set(lengths) != {len(sample.mask)}:
            raise ValueError(
                f"turn {sample.turn}: expected {len(sample.mask)} log-probabilities from student and teachers each, "
                f"got {lengths}"
            )
        if not hinted:
            return np.zeros(len(o), np.float32)
        mixture = np.logaddexp.reduce(np.stack(hinted).astype(np.float64), axis=0) - np.log(len(hinted))
        advantage: Logprobs = np.clip(mixture - o, -self._clip, self._clip).astype(np.float32)
        return advantage
