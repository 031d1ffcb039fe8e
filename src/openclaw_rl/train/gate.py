"""The first gate: what a candidate must show before it becomes the head. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

NEEDED = ("loss/total", "gradient/norm", "kl", "kl/step")


def refusal(metrics: Mapping[str, float], *, grad_norm: float, kl: float, step_kl: float) -> str | None:
    """Why these metrics of a step do not pass, in words for a person; None when they do.

    `grad_norm` bounds the norm before clipping; `kl` the mean distance to the base after the step, unless the step made
    it smaller (or a policy that went too far could never come back); `step_kl` the length of the step itself, after all
    the halving that the trainer does (both in nats/token).
    """
    for name in (*NEEDED, *metrics):
        value = metrics.get(name)
        if value is None or not math.isfinite(value):
            return f"{name} is {value}, expected a finite number"
    if metrics["gradient/norm"] > grad_norm:
        return f"gradient norm {metrics['gradient/norm']:.3g} is above train.gate_grad_norm {grad_norm:g}"
    if metrics["kl"] > kl and metrics["kl"] >= metrics.get("kl/before", 0.0):
        return f"KL to the base {metrics['kl']:.3g} nats per token is above train.gate_kl {kl:g}"
    if metrics["kl/step"] > step_kl:
        return (
            f"even {metrics.get('step/scale', 1.0):.3g} of the step moves the policy by {metrics['kl/step']:.3g} nats "
            f"per token, above train.max_step_kl {step_kl:g}"
        )
    return None
