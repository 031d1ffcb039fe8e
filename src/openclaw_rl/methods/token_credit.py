"""Credit by token: how far the terms of a step push each token of a reply up or down. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openclaw_rl.methods.hint_selection import FloatArray, mix_teachers
from openclaw_rl.methods.types import AnyTerm, BatchLogprobs, Credit, PolicyGradientTerm


def credit_by_token(terms: Sequence[AnyTerm], evidence: BatchLogprobs) -> dict[str, Credit]:
    """Return the credit [R] of each turn that is in a term: the sum of weight times advantage over its terms.

    A term with target distributions has no advantages; there it is the log-probability of the token under the teacher
    minus that under the policy, in nats. Positive credit makes a token more likely. Zero outside of the masks.
    """
    credits: dict[str, FloatArray] = {}
    for term in terms:
        for i, mask in enumerate(term.masks):
            if mask.any():
                turn = evidence.samples[i].turn
                before = credits.get(turn, np.zeros(len(mask)))
                credits[turn] = before + np.where(
                    mask, term.weight * _advantages(term, evidence, i), 0.0
                )
    limit = np.finfo(np.float16).max
    return {
        turn: np.clip(np.nan_to_num(credit), -limit, limit).astype(np.float16)
        for turn, credit in credits.items()
    }


def _advantages(term: AnyTerm, evidence: BatchLogprobs, i: int) -> FloatArray:
    if isinstance(term, PolicyGradientTerm):
        return term.advantages[i]
    difference: FloatArray = (
        mix_teachers(evidence.teacher_logprobs[i]) - evidence.student_logprobs[i]
    )
    return difference
