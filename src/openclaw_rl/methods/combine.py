"""combine: w_rl * L_binary + w_opd * L_opd, each with its own mask and denominator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from openclaw_rl.methods.binary import Binary
from openclaw_rl.methods.opd import Opd
from openclaw_rl.methods.topk_distillation import TopK
from openclaw_rl.methods.types import AnyTerm, Evidence, Sample


class Combine:
    """The terms of both methods. A sample is in a term only if it has that term's signal.

    The two advantages are not added before the clip: a sample without a hint must not count in the denominator of the
    distillation term, nor one without a score in that of the binary term.
    """

    def __init__(self, *, binary: Binary, opd: Opd | TopK, w_binary: float = 1.0, w_opd: float = 1.0) -> None:
        both: tuple[tuple[Binary | Opd | TopK, float], ...] = ((binary, w_binary), (opd, w_opd))
        self._parts = [(method, w) for method, w in both if w > 0]
        self.uses_reward = w_binary > 0
        self.uses_hints = w_opd > 0
        self.top = max((method.top for method, _ in self._parts), default=0)

    def terms(self, evidence: Evidence, memory: Mapping[str, Any]) -> tuple[AnyTerm, ...]:
        """Return the weighted terms of both methods."""
        return tuple(
            replace(term, weight=term.weight * weight)
            for method, weight in self._parts
            for term in method.terms(evidence, memory)
        )

    def remember(self, samples: Sequence[Sample], memory: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state updated by both methods."""
        kept = dict(memory)
        for method, _ in self._parts:
            kept = method.remember(samples, kept)
        return kept
