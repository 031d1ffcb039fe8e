"""Distillation from the model prompted with the hint, over the top-k tokens at each position.

`opd` learns from the sampled token only. This compares both distributions: the divergence over N + 1 bins, which are N
tokens and the rest of the vocabulary as one tail, with its exact gradient (no sampling noise).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from openclaw_rl.methods.hint_selection import Floats, HintChoice, chosen, mixture, overlaps
from openclaw_rl.methods.types import Divergence, Evidence, Sample, Support, Target, Tops
from openclaw_rl.types import Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Target and metrics of one sample with hints."""

    support: Support
    speaks: bool
    overlap: Floats  # [tokens of the mask]
    tail: Floats  # [tokens of the mask]


class TopK:
    """The divergence between the teacher T (hinted prompt) and the policy pi (plain prompt) at each position.

    `of` "student": over the student's N top tokens (SDPO, arXiv:2601.20802); "teacher": over the teacher's (SDFT,
    arXiv:2601.19897). A sample without a hint is in no term and in no denominator.
    """

    uses_reward = False
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
    ) -> None:
        """`top`: N. Raises `ValueError` for a mixture of teachers over the teacher's top tokens."""
        if of == "teacher" and hint_choice == "mixture":
            raise ValueError(
                "train.hint_choice mixture: each hinted teacher has likeliest tokens of its own, so they cannot be "
                "mixed. Use overlap, or the student's likeliest tokens"
            )
        self.top = top
        self._name, self._of, self._divergence, self._cap, self._choice = name, of, divergence, cap, hint_choice

    def terms(self, evidence: Evidence, memory: Mapping[str, Any]) -> tuple[Target, ...]:
        """Return one term over the samples with hints."""
        parts = [
            self._part(s, o, hinted, tops) if hinted else None
            for s, o, hinted, tops in zip(
                evidence.samples, evidence.student, evidence.teachers, evidence.tops, strict=True
            )
        ]
        pairs = list(zip(evidence.samples, parts, strict=True))
        return (
            Target(
                name=self._name,
                weight=1.0,
                supports=tuple(None if part is None else part.support for part in parts),
                masks=tuple(s.mask & (part is not None) for s, part in pairs),
                divergence=self._divergence,
                cap=self._cap,
                speaks=any(part.speaks for part in parts if part),
                metrics=_told([part for part in parts if part]),
            ),
        )

    def remember(self, samples: Sequence[Sample], memory: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state unchanged."""
        return dict(memory)

    def _part(self, sample: Sample, o: Floats, hinted: Sequence[Floats], tops: Tops) -> _Part:
        mask = sample.mask
        lengths = [len(seen.ids) for seen in (tops.student, *tops.teachers)]
        if set(lengths) != {len(mask)}:
            raise ValueError(f"turn {sample.turn}: expected likeliest tokens at {len(mask)} positions, got {lengths}")
        hints = chosen(tops, mask, self._choice)
        if self._of == "student":
            support = Support(ids=tops.student.ids, logps=mixture([tops.crossed[i] for i in hints]))
            own = tops.student
        else:
            support = own = tops.teachers[hints[0]]
        return _Part(
            support=support,
            speaks=any(bool(np.any(hinted[i][mask] != o[mask])) for i in hints),
            overlap=overlaps(tops, hints, mask),
            tail=_tail(own, mask),
        )


def _tail(own: Support, mask: Mask) -> Floats:
    """Return [tokens of the mask], the probability of all other tokens."""
    rest: Floats = (1 - np.exp(own.logps.astype(np.float64)).sum(axis=1)).clip(min=0)[mask]
    return rest


def _told(parts: Sequence[_Part]) -> dict[str, float]:
    """Return the metrics, averaged over the tokens of all samples with hints."""
    if not any(len(part.tail) for part in parts):
        return {}
    return {
        "overlap": float(np.concatenate([part.overlap for part in parts]).mean()),
        "tail": float(np.concatenate([part.tail for part in parts]).mean()),
    }
