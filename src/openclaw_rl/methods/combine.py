"""combine: w_rl * L_binary + w_opd * L_opd, each with its own mask and denominator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from openclaw_rl.methods.binary import make_binary
from openclaw_rl.methods.opd import make_opd
from openclaw_rl.methods.spec import MethodSettings, MethodSpec
from openclaw_rl.methods.types import AnyTerm, BatchLogprobs, CreditMethod, Sample


class CombinedMethod(CreditMethod):
    """The terms of both methods. A sample is in a term only if it has that term's signal.

    The two advantages are not added before the clip: a sample without a hint must not count in the denominator of the
    distillation term, nor one without a score in that of the binary term.
    """

    def __init__(
        self, *, binary: CreditMethod, opd: CreditMethod, w_binary: float = 1.0, w_opd: float = 1.0
    ) -> None:
        """Raises `ValueError` if both weights are 0."""
        if w_binary == 0 == w_opd:
            raise ValueError(
                "train.loss.w_binary and train.loss.w_opd are both 0: nothing could be learned. Set one of them"
            )
        both = ((binary, w_binary), (opd, w_opd))
        self._weighted_methods = [(method, w) for method, w in both if w > 0]
        self.uses_reward = w_binary > 0
        self.uses_hints = w_opd > 0
        self.topk_size = max((method.topk_size for method, _ in self._weighted_methods), default=0)

    def loss_terms(
        self, evidence: BatchLogprobs, method_state: Mapping[str, Any]
    ) -> tuple[AnyTerm, ...]:
        """Return the weighted terms of both methods."""
        return tuple(
            replace(term, weight=term.weight * weight)
            for method, weight in self._weighted_methods
            for term in method.loss_terms(evidence, method_state)
        )

    def update_state(
        self, samples: Sequence[Sample], method_state: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the state updated by both methods."""
        state = dict(method_state)
        for method, _ in self._weighted_methods:
            state = method.update_state(samples, state)
        return state


def _create(train: MethodSettings) -> CombinedMethod:
    return CombinedMethod(
        binary=make_binary(train),
        opd=make_opd(train),
        w_binary=train.loss.w_binary,
        w_opd=train.loss.w_opd,
    )


SPEC = MethodSpec(
    name="combine",
    summary="binary and opd together",
    create=_create,
    own_settings=("train.loss.w_binary", "train.loss.w_opd"),
)
