"""The size of the next step: the trust region begins its search where the last step of the lineage ended."""

from __future__ import annotations

from enum import StrEnum

MIN_STEP_SCALE = 2**-8
"""Smallest fraction of a step; if the policy still moved too far, the gate rejects it."""
_GROWTH = 2.0


class StepKind(StrEnum):
    """The samples of a step: turns of people, or practice. Each kind has its own bound, and so its own size."""

    TURNS = "turns"
    PRACTICE = "practice"


def next_rate_scale(scale: float, *, remaining: float, moved: float, bound: float) -> float:
    """Return the factor on the learning rate of the next step, from `MIN_STEP_SCALE` to 1.

    `scale`: factor of this step; `remaining`: share of the step that remains after halving; `moved`: distance between
    the policies before and after it (k2, nats per token); `bound`: of the trust region.

    A step that was halved would be halved again at the same rate, with one forward pass for each. A whole step that
    moved the policy less than a quarter of the bound may be twice as large, as the distance grows with its square.
    """
    if remaining < 1:
        return max(scale * remaining, MIN_STEP_SCALE)
    if moved < bound / _GROWTH**2:
        return min(scale * _GROWTH, 1.0)
    return scale
