"""Selection among several hints: the mixture of all teachers, or the one teacher nearest to the student.

Legend: R response tokens, N top tokens at each position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from openclaw_rl.methods.types import TopKScores
from openclaw_rl.types import Ids, Mask

HintChoice = Literal["mixture", "overlap"]
FloatArray = NDArray[np.floating[Any]]


def mix_teachers(logps: Sequence[FloatArray]) -> FloatArray:
    """Return the log-probabilities of the even mixture of the hinted teachers, in float64.

    The mixture is a distribution, so a student can converge to it, and the order of the hints does not matter.
    """
    mixed: FloatArray = np.logaddexp.reduce(np.stack(logps).astype(np.float64), axis=0) - np.log(
        len(logps)
    )
    return mixed


def _shared_count(a_RN: Ids, b_RN: Ids) -> NDArray[np.int64]:
    """Return [R], the number of tokens that two sets of N have in common. No set has a token twice."""
    both = np.sort(np.concatenate([a_RN, b_RN], axis=1), axis=1)
    shared: NDArray[np.int64] = (both[:, 1:] == both[:, :-1]).sum(axis=1)
    return shared


def overlap_share(a_RN: Ids, b_RN: Ids) -> FloatArray:
    """Return [R], the share of N tokens that two sets of N have in common (arXiv:2603.10165 v2)."""
    share: FloatArray = _shared_count(a_RN, b_RN) / a_RN.shape[1]
    return share


def choose_hints(tops: TopKScores, mask: Mask, choice: HintChoice) -> list[int]:
    """Return the indices of the hints to use: all, or the first with the largest mean overlap over the mask."""
    hints = range(len(tops.teachers))
    if choice == "mixture" or not hints:
        return list(hints)
    # Compare integers, so that ties go to the first hint; sums of shares would differ by rounding.
    common = [_shared_count(tops.student.ids, teacher.ids)[mask].sum() for teacher in tops.teachers]
    return [int(np.argmax(common))]


def mean_overlap(tops: TopKScores, hints: Sequence[int], mask: Mask) -> FloatArray:
    """Return [tokens of the mask], the overlap of the top tokens of student and teachers, averaged over those hints."""
    shares = [overlap_share(tops.student.ids, tops.teachers[i].ids) for i in hints]
    mean: FloatArray = np.mean(shares, axis=0)[mask]
    return mean
