"""The gate on step metrics that a candidate must pass before it becomes the head. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

REQUIRED_METRICS = ("loss/total", "gradient/norm", "kl", "kl/step")


def rejection_reason(metrics: Mapping[str, float], *, grad_norm: float, kl: float, step_kl: float) -> str | None:
    """Return why these step metrics fail the gate, as readable text; None if they pass.

    `grad_norm` bounds the gradient norm before clipping. `kl` (nats/token) bounds the mean KL to the base after the
    step. A step that reduces that KL passes anyway, or a policy beyond the bound could never come back. `step_kl`
    (nats/token) bounds the KL of the step itself, after the trainer has halved it as often as it may.
    """
    for name in (*REQUIRED_METRICS, *metrics):
        value = metrics.get(name)
        if value is None or not math.isfinite(value):
            return f"{name} is {value}, expected a finite number"
    if metrics["gradient/norm"] > grad_norm:
        return f"gradient norm {metrics['gradient/norm']:.3g} is above train.safety.gate_grad_norm {grad_norm:g}"
    if metrics["kl"] > kl and metrics["kl"] >= metrics.get("kl/before", 0.0):
        return f"KL to the base {metrics['kl']:.3g} nats per token is above train.safety.gate_kl {kl:g}"
    if metrics["kl/step"] > step_kl:
        return (
            f"even {metrics.get('step/scale', 1.0):.3g} of the step moves the policy by {metrics['kl/step']:.3g} nats "
            f"per token, above train.safety.max_step_kl {step_kl:g}"
        )
    return None
