"""Statistics of agreement and of shares: Cohen's kappa and the Wilson interval, both with 95% confidence."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

# 0.975 quantile of the standard normal distribution.
_Z = 1.959964


@dataclass(frozen=True, slots=True, kw_only=True)
class Kappa:
    """Cohen's kappa with its 95% interval, of `pairs` pairs. 1: full agreement, 0: as much as chance gives."""

    value: float
    low: float
    high: float
    pairs: int


def cohens_kappa(pairs: Sequence[tuple[int, int]]) -> Kappa | None:
    """Return the unweighted kappa of pairs of categories, one by each of two raters.

    Kappa is (po - pe) / (1 - pe): po is the share of equal pairs, pe the share that is expected by chance from the
    marginals (Cohen 1960, doi:10.1177/001316446002000104). The interval is kappa +- 1.96 times the asymptotic standard
    error of Fleiss, Cohen and Everitt (1969, doi:10.1037/h0028106), cut to [-1, 1]. None without pairs,
    and if both raters always gave the same one category: kappa is not defined then.

    The fractions are exact, so that a rater who always says the same has a kappa of 0, and not a little above it.
    """
    n = len(pairs)
    share = {cell: Fraction(count, n) for cell, count in Counter(pairs).items()}
    rows: defaultdict[int, Fraction] = defaultdict(Fraction)
    columns: defaultdict[int, Fraction] = defaultdict(Fraction)
    for (first, second), p in share.items():
        rows[first] += p
        columns[second] += p
    expected = sum(rows[one] * columns[one] for one in set(rows) & set(columns))
    if not n or expected == 1:
        return None
    observed = sum(p for (first, second), p in share.items() if first == second)
    kappa = (observed - expected) / (1 - expected)
    spread = -((observed * expected - 2 * expected + observed) ** 2)
    for (first, second), p in share.items():
        if first == second:
            spread += p * ((1 - expected) - (rows[first] + columns[first]) * (1 - observed)) ** 2
        else:
            spread += p * ((1 - observed) * (columns[first] + rows[second])) ** 2
    error = math.sqrt(spread / n) / float(1 - expected) ** 2
    value = float(kappa)
    return Kappa(
        value=value, low=max(value - _Z * error, -1.0), high=min(value + _Z * error, 1.0), pairs=n
    )


def wilson_interval(count: int, of: int) -> tuple[float, float]:
    """Return the 95% score interval of a share (Wilson 1927, doi:10.1080/01621459.1927.10502953); (0, 1) of nothing."""
    if of == 0:
        return 0.0, 1.0
    share = count / of
    z2 = _Z * _Z
    centre = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = _Z * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of)) / (1 + z2 / of)
    return max(centre - half, 0.0), min(centre + half, 1.0)
