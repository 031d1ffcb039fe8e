"""The gates over the metrics of a step. Pure. A new one is a function and an entry in `GATES`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.load import TrainConfig
from openclaw_rl.settings.registry import find_trainer

Metrics = Mapping[str, float]
Gate = Callable[[Metrics, TrainConfig], Reason | None]
"""Maps the metrics of a step to the reason why its result is not published; None: it passes."""

MIN_ENTROPY_FALL = 0.02
"""Nats per token by which the entropy may always be below the teacher's."""


def metrics_are_finite(metrics: Metrics, train: TrainConfig) -> Reason | None:
    """Every metric must be a finite number, and the metrics that its trainer must report must exist.

    The other gates bound what there is.
    """
    required = find_trainer(train.trainer).required_metrics
    for name in (*required, *metrics):
        value = metrics.get(name)
        if value is None or not math.isfinite(value):
            return Reason(ReasonCode.NOT_FINITE, f"{name} is {value}, expected a finite number")
    return None


def gradient_is_bounded(metrics: Metrics, train: TrainConfig) -> Reason | None:
    """`train.safety.gate_grad_norm` bounds the gradient norm before clipping."""
    norm = metrics.get("gradient/norm", 0.0)
    limit = train.safety.gate_grad_norm
    if norm <= limit:
        return None
    return Reason(
        ReasonCode.GRADIENT_NORM,
        f"gradient norm {norm:.3g} is above train.safety.gate_grad_norm {limit:g}",
    )


def stays_near_base(metrics: Metrics, train: TrainConfig) -> Reason | None:
    """`train.safety.gate_kl` bounds the mean KL to the base after the step, in nats per token.

    A step that reduces that KL passes anyway: otherwise a policy beyond the bound could never return within it.
    """
    kl = metrics.get("kl", 0.0)
    limit = train.safety.gate_kl
    if kl <= limit or kl < metrics.get("kl/before", 0.0):
        return None
    detail = f"KL to the base {kl:.3g} nats per token is above train.safety.gate_kl {limit:g}"
    return Reason(ReasonCode.BASE_KL, detail)


def step_is_small(metrics: Metrics, train: TrainConfig) -> Reason | None:
    """`train.safety.max_step_kl` bounds the KL of the step, after the trainer has halved it as often as it may.

    A step of practice is bounded by `train.safety.max_practice_kl`.
    """
    setting = "max_practice_kl" if metrics.get("step/practice") else "max_step_kl"
    moved = metrics.get("kl/step", 0.0)
    limit = float(getattr(train.safety, setting))
    if moved <= limit:
        return None
    return Reason(
        ReasonCode.STEP_KL,
        f"even {metrics.get('step/scale', 1.0):.3g} of the step moves the policy by {moved:.3g} nats per token, above "
        f"train.safety.{setting} {limit:g}",
    )


def keeps_entropy(metrics: Metrics, train: TrainConfig) -> Reason | None:
    """`train.safety.gate_entropy` bounds the entropy after a step of practice from below, as a share of the teacher's.

    The teacher is the base with the lessons in its prompt, so a wish for short, certain replies lowers both. A step
    that raises the entropy passes anyway, and a small difference does: of certain replies, a share says nothing.
    """
    after = metrics.get("entropy/after")
    teacher = metrics.get("entropy/teacher", 0.0)
    share = train.safety.gate_entropy
    if after is None or after >= share * teacher or teacher - after <= MIN_ENTROPY_FALL:
        return None
    if after >= metrics.get("entropy/before", math.inf):
        return None
    return Reason(
        ReasonCode.ENTROPY,
        f"the entropy {after:.3g} nats per token is below train.safety.gate_entropy {share:g} of that of the base with "
        f"the lessons, {teacher:.3g}",
    )


GATES: tuple[Gate, ...] = (
    metrics_are_finite,
    gradient_is_bounded,
    stays_near_base,
    step_is_small,
    keeps_entropy,
)
"""They run in this order; the first refusal counts."""


def rejection_reason(
    metrics: Metrics, train: TrainConfig, *, bounded: bool = True
) -> Reason | None:
    """Return why the first gate refuses these step metrics; None if they pass. `bounded`: False: finite is enough."""
    gates = GATES if bounded else GATES[:1]
    for gate in gates:
        reason = gate(metrics, train)
        if reason is not None:
            return reason
    return None
