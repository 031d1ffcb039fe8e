"""Whether a local engine and the Tinker service have the same base model, by its log-probabilities. Pure.

Names prove nothing: the same weights have a name at the service and a folder here. Both get token ids, so another
tokenizer shows as well. Shapes: R response tokens of a sample.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openclaw_rl.methods.types import Sample
from openclaw_rl.types import Logprobs

MAX_BASE_GAP = 0.1
"""Mean |difference| of log-probabilities in nats per token, in the median turn. The same weights in bfloat16 and in
float32 differ by about a tenth of it; other weights, by several times as much."""


def base_gap(samples: Sequence[Sample], service: Sequence[Logprobs]) -> float | None:
    """Return the mean |difference| between engine and service of the median turn of the base; None without such turns.

    `service`: [R] log-probabilities of each sample under the base at the service. A reply under lessons is left out:
    the service scored it under the plain prompt.
    """
    gaps = []
    for sample, logprobs in zip(samples, service, strict=True):
        is_comparable = sample.version == 0 and not sample.from_teacher
        if not is_comparable or not sample.mask.any():
            continue
        difference = np.abs(logprobs - sample.logprobs)
        gaps.append(float(difference[sample.mask].mean()))
    return float(np.median(gaps)) if gaps else None


def mismatch_message(gap: float, *, here: str, there: str) -> str:
    """Return what differs and what to do, in one line. `here`, `there`: names of the base."""
    return (
        f"the base that the local engine serves ({here}) is not the one at the Tinker service ({there}): their "
        f"log-probabilities differ by {gap:.2f} nats per token, expected at most {MAX_BASE_GAP:g}. Set tinker.model to "
        "the name of this base at the service, or model.path to that one, and start again; serving is not affected"
    )
