"""Of several hints: all of them as one teacher, or the one whose teacher is nearest to the student.

Legend: R response tokens, N likeliest tokens at each position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from openclaw_rl.methods.types import Tops
from openclaw_rl.types import Ids, Mask

HintChoice = Literal["mixture", "overlap"]
Floats = NDArray[np.floating[Any]]


def mixture(logps: Sequence[Floats]) -> Floats:
    """The even mixture of the hinted teachers: the logarithm of the mean of their probabilities, in float64.

    It is a distribution again, so that a student can come to rest at it, and no order of the hints matters.
    """
    mixed: Floats = np.logaddexp.reduce(np.stack(logps).astype(np.float64), axis=0) - np.log(len(logps))
    return mixed


def _shared(a_RN: Ids, b_RN: Ids) -> NDArray[np.int64]:
    """[R] how many tokens two sets of N have in common. No set holds a token twice."""
    both = np.sort(np.concatenate([a_RN, b_RN], axis=1), axis=1)
    shared: NDArray[np.int64] = (both[:, 1:] == both[:, :-1]).sum(axis=1)
    return shared


def overlap(a_RN: Ids, b_RN: Ids) -> Floats:
    """[R] share of N tokens that two sets of N have in common (arXiv:2603.10165 v2)."""
    share: Floats = _shared(a_RN, b_RN) / a_RN.shape[1]
    return share


def chosen(tops: Tops, mask: Mask, choice: HintChoice) -> list[int]:
    """Which of a reply's hints to follow: all, or the first of those with the largest mean overlap over its tokens."""
    hints = range(len(tops.teachers))
    if choice == "mixture" or not hints:
        return list(hints)
    # Whole numbers: of equal ones the first counts, and sums of shares differ by their rounding.
    common = [_shared(tops.student.ids, teacher.ids)[mask].sum() for teacher in tops.teachers]
    return [int(np.argmax(common))]


def overlaps(tops: Tops, hints: Sequence[int], mask: Mask) -> Floats:
    """[tokens of the mask] the mean over those hints: how much of what the student may say the teachers may say."""
    shares = [overlap(tops.student.ids, tops.teachers[i].ids) for i in hints]
    mean: Floats = np.mean(shares, axis=0)[mask]
    return mean
