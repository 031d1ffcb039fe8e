"""Check for a learning rate that is too low: its steps do not measurably change the policy."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

log = logging.getLogger("openclaw_rl.train")
# Number of newest steps that must all be below the bound.
CHECKED_STEPS = 5
MIN_STEP_KL = 1e-7
"""Smallest `kl/step` of a step that teaches something, in nats per token.

It is half the mean squared change of a token's log-probability. A step below this bound changes it by less than 0.00045
nats, so a change of one nat takes more than two thousand steps.
"""
# Steps at a higher rate are small for another reason.
MAX_LOW_RATE = 1e-4
# `kl/step` of the default settings on the starter policy, rounded down.
_USEFUL_STEP_KL = 1e-4
# By which a better rate is higher at most.
_MAX_FACTOR = 100.0


class LowRate(NamedTuple):
    """A learning rate that is too low, and what its steps did."""

    rate: float
    kl: float  # largest `kl/step` of the checked steps
    steps: int  # number of the checked steps

    @property
    def evidence(self) -> str:
        """The measurement in words."""
        which = "the newest step" if self.steps == 1 else f"each of the newest {self.steps} steps"
        return (
            f"kl/step: at learning rate {self.rate:g}, {which} changed the policy by {self.kl:.2g} nats per token or "
            f"less; below {MIN_STEP_KL:g} nothing is learned"
        )

    @property
    def better_rate(self) -> float:
        """A rate with useful steps, to one digit: the KL of a step grows with the square of the rate."""
        factor = math.sqrt(_USEFUL_STEP_KL / self.kl) if self.kl > 0 else _MAX_FACTOR
        return float(f"{self.rate * min(_MAX_FACTOR, factor):.0e}")


class LowRateWarning:
    """Logs once if the learning rate is too low for the policy to change."""

    def __init__(self) -> None:
        self._newest: deque[Mapping[str, float]] = deque(maxlen=CHECKED_STEPS)
        self._is_logged = False

    def add_step(self, metrics: Mapping[str, float]) -> None:
        """Take the metrics of one more step into account."""
        self._newest.append(metrics)
        low = find_low_rate(self._newest)
        if low is not None and not self._is_logged:
            self._is_logged = True
            log.warning(
                "%s. Set train.optimizer.learning_rate (--lr) to %g", low.evidence, low.better_rate
            )


def find_low_rate(
    steps: Sequence[Mapping[str, Any]], *, checked: int = CHECKED_STEPS
) -> LowRate | None:
    """Return the learning rate if the newest `checked` steps show that it is too low, else None.

    `steps`: their metrics, oldest first. All must have the same rate, so that steps of a warm-up do not count.
    """
    complete = [step for step in steps if {"kl/step", "learning_rate"} <= step.keys()]
    newest = complete[-checked:]
    if len(newest) < checked:
        return None
    rates = {float(step["learning_rate"]) for step in newest}
    kl = max(float(step["kl/step"]) for step in newest)
    is_low = max(rates) < MAX_LOW_RATE and kl < MIN_STEP_KL
    if len(rates) > 1 or not is_low:
        return None
    return LowRate(rate=rates.pop(), kl=kl, steps=checked)
