"""A sequential test of the mean of bounded differences, valid at whatever time it is read. Pure.

Evidence is the wealth of a bet against a hypothesis (arXiv:2010.09686, section 4): if the hypothesis is true, the
probability that the wealth ever reaches 1/error is at most `error` (Ville's inequality). So the test may stop as soon
as it has decided, and looking at it after each observation costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Decision = Literal["worse", "not worse"]
# Shares of the largest bet that keeps the wealth positive.
_BETS = np.linspace(0.05, 0.95, 19)


@dataclass(slots=True, kw_only=True)
class MeanTest:
    """Tests whether the mean of differences in [-1, 1], new less old, is below `-margin`.

    `evidence_worse` speaks against "the mean is at least -margin", `evidence_not_worse` against "the mean is at most
    -margin". Each difference may depend on those before it. Raises `ValueError` for a margin or an error outside
    [0, 1) and (0, 1).
    """

    margin: float  # a fall of the mean by this much is accepted
    error: float  # probability of a wrong "worse", and of a wrong "not worse", at most
    count: int = 0
    _log_worse: NDArray[np.float64] = field(default_factory=lambda: np.zeros(len(_BETS)))
    _log_not_worse: NDArray[np.float64] = field(default_factory=lambda: np.zeros(len(_BETS)))

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 1:
            raise ValueError(f"expected a margin in [0, 1), got {self.margin}")
        if not 0 < self.error < 1:
            raise ValueError(f"expected an error in (0, 1), got {self.error}")

    def add(self, differences: Iterable[float]) -> None:
        """Add observations. Raises `ValueError` for one outside [-1, 1], and then adds none."""
        values = np.asarray(list(differences), dtype=np.float64)
        if not (np.abs(values) <= 1).all():
            raise ValueError(
                f"expected a difference in [-1, 1], got {values[~(np.abs(values) <= 1)][0]}"
            )
        # From margin - 1 to margin + 1; 0 at the border of both hypotheses.
        excess = values + self.margin
        self._log_worse += np.log1p(np.multiply.outer(_BETS / -(1 + self.margin), excess)).sum(
            axis=1
        )
        self._log_not_worse += np.log1p(np.multiply.outer(_BETS / (1 - self.margin), excess)).sum(
            axis=1
        )
        self.count += len(values)

    @property
    def evidence_worse(self) -> float:
        """Wealth of the bet on "worse"; 1 before the first observation."""
        return _mean_wealth(self._log_worse)

    @property
    def evidence_not_worse(self) -> float:
        """Wealth of the bet on "not worse"; 1 before the first observation."""
        return _mean_wealth(self._log_not_worse)

    @property
    def decision(self) -> Decision | None:
        """The hypothesis that has enough evidence; None if more observations are needed."""
        if self.evidence_worse >= 1 / self.error:
            return "worse"
        return "not worse" if self.evidence_not_worse >= 1 / self.error else None


def _mean_wealth(logs: NDArray[np.float64]) -> float:
    """Return the mean over the bets: a mean of fair bets is a fair bet."""
    top = float(logs.max())
    return float(np.exp(min(top, 700.0)) * np.exp(logs - top).mean())
