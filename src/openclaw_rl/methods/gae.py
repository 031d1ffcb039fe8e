"""Generalised advantage estimation (GAE). No method uses it; scripts and plug-in losses do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def compute_gae(
    rewards: Sequence[float], values: Sequence[float], gamma: float = 0.99, lambda_: float = 0.95
) -> NDArray[np.float64]:
    """Return generalised advantage estimates [T] (arXiv:1506.02438, eq. 16).

    A_t = delta_t + gamma lambda A_{t+1}, delta_t = r_t + gamma V_{t+1} - V_t, and A is 0 after the last step.
    `rewards` [T]; `values` [T], or [T + 1] with the value of the state after the last step (else 0: the session ended).
    Raises `ValueError` for other lengths.
    """
    t = len(rewards)
    if len(values) not in (t, t + 1):
        raise ValueError(
            f"compute_gae: expected {t} or {t + 1} values for {t} rewards, got {len(values)}"
        )
    v = np.zeros(t + 1)
    v[: len(values)] = values
    deltas = np.asarray(rewards, np.float64) + gamma * v[1:] - v[:-1]
    out = np.empty(t)
    later = 0.0
    for step in range(t - 1, -1, -1):
        later = deltas[step] + gamma * lambda_ * later
        out[step] = later
    return out
