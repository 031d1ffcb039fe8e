"""Weights & Biases helpers for scripts with their own training loop. They use our metric names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openclaw_rl.errors import OpenClawError

METRIC_NAMES = {
    "total_loss": "loss/total",
    "binary_loss": "loss/binary",
    "opd_loss": "loss/opd",
    "mean_reward": "reward/mean",
    "std_reward": "reward/std",
    "grad_norm": "gradient/norm",
    "lr": "learning_rate",
}
"""Metric name of scripts -> our metric name."""
# Optional, because a method may not have them.
_OPTIONAL_LOSSES = ("loss/binary", "loss/opd")


def setup_wandb_logging(project_name: str, config: Mapping[str, Any]) -> Any:
    """Start the W&B run `openclaw-rl-<method>`, by `config["method"]`, and return it. W&B stores `config` with it.

    WANDB_MODE=offline and the other variables of W&B apply. Raises `ValueError` without a method, `OpenClawError` when
    W&B is not installed, and W&B's own errors.
    """
    if not isinstance(config.get("method"), str):
        raise ValueError(
            f'setup_wandb_logging: expected a config with a "method", e.g. binary; got the keys {", ".join(config)}'
        )
    return _import_wandb().init(
        project=project_name, config=dict(config), name=f"openclaw-rl-{config['method']}"
    )


def log_training_metrics(step: int, metrics: Mapping[str, Any]) -> None:
    """Log a step to the run of `setup_wandb_logging`. `metrics`: numbers, or tensors with one element.

    Both names in METRIC_NAMES are accepted, and other metrics too. All of METRIC_NAMES are required but the losses of
    single methods. Raises `ValueError` for a missing, repeated or non-numeric metric, `OpenClawError` without a run.
    """
    sent: dict[str, float] = {}
    for key, value in metrics.items():
        name = METRIC_NAMES.get(key, key)
        if name in sent:
            raise ValueError(f"log_training_metrics: {name} is given twice, also as {key}")
        try:
            # A loss is attached to its graph.
            sent[name] = float(value.detach() if hasattr(value, "detach") else value)
        except (TypeError, ValueError, RuntimeError):
            # RuntimeError: a tensor with several elements.
            raise ValueError(
                f"log_training_metrics: {key}: expected a number, got {value!r}"
            ) from None
    missing = [
        f"{key} ({name})"
        for key, name in METRIC_NAMES.items()
        if name not in sent and name not in _OPTIONAL_LOSSES
    ]
    if missing:
        raise ValueError(
            f"log_training_metrics: missing {', '.join(missing)}; got {', '.join(metrics)}"
        )
    run = _import_wandb().run
    if run is None:
        raise OpenClawError(
            "log_training_metrics: no active run. Call setup_wandb_logging(project_name, config)."
        )
    run.log(sent | {"step": step}, step=step, commit=True)


def _import_wandb() -> Any:
    try:
        import wandb
    except ImportError:
        raise OpenClawError("wandb is not installed here: `pip install wandb`") from None
    return wandb
