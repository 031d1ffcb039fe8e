"""Selection among several hints: the mixture of all teachers, or the one teacher nearest to the student.

Legend: R response tokens, N top tokens at each position.
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
    """Return the log-probabilities of the even mixture of the hinted teachers, in float64.

    The mixture is a distribution, so a student can converge to it, and the order of the hints does not matter.
    """
    mixed: Floats = np.logaddexp.reduce(np.stack(logps).astype(np.float64), axis=0) - np.log(len(logps))
    return mixed


def _shared(a_RN: Ids, b_RN: Ids) -> NDArray[np.int64]:
    """Return [R], the number of tokens that two sets of N have in common. No set has a token twice."""
    both = np.sort(np.concatenate([a_RN, b_RN], axis=1), axis=1)
    shared: NDArray[np.int64] = (both[:, 1:] == both[:, :-1]).sum(axis=1)
    return shared


def overlap(a_RN: Ids, b_RN: Ids) -> Floats:
    """Return [R], the share of N tokens that two sets of N have in common (arXiv:2603.10165 v2)."""
    share: Floats = _shared(a_RN, b_RN) / a_RN.shape[1]
    return share


def chosen(tops: Tops, mask: Mask, choice: HintChoice) -> list[int]:
    """Return the indices of the hints to use: all, or the first with the largest mean overlap over the mask."""
    hints = range(len(tops.teachers))
    if choice == "mixture" or not hints:
        return list(hints)
    # Compare integers, so that ties go to the first hint; sums of shares would differ by rounding.
    common = [_shared(tops.student.ids, teacher.ids)[mask].sum() for teacher in tops.teachers]
    return [int(np.argmax(common))]


def overlaps(tops: Tops, hints: Sequence[int], mask: Mask) -> Floats:
    """Return [tokens of the mask], the overlap of the top tokens of student and teachers, averaged over those hints."""
    shares = [overlap(tops.student.ids, tops.teachers[i].ids) for i in hints]
    mean: Floats = np.mean(shares, axis=0)[mask]
    return mean
