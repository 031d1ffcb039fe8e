"""Weights & Biases for a training loop of your own, under the names of our metrics: for scripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openclaw_rl.errors import OpenClawError

NAMES = {
    "total_loss": "loss/total",
    "binary_loss": "loss/binary",
    "opd_loss": "loss/opd",
    "mean_reward": "reward/mean",
    "std_reward": "reward/std",
    "grad_norm": "gradient/norm",
    "lr": "learning_rate",
}
"""What scripts call a metric, and what it is called here."""
_ONE_METHOD = ("loss/binary", "loss/opd")  # a loss that the method may not have


def setup_wandb_logging(project_name: str, config: Mapping[str, Any]) -> Any:
    """Begin a run called `openclaw-rl-<method>`, by `config["method"]`; W&B keeps `config` with it. Gives the run.

    WANDB_MODE=offline and the other variables of W&B hold. Raises `ValueError` without a method, `OpenClawError` when
    W&B is not installed, and W&B's own errors.
    """
    if not isinstance(config.get("method"), str):
        raise ValueError(
            f'setup_wandb_logging: expected a config with its "method", e.g. binary; got the keys {", ".join(config)}'
        )
    return _wandb().init(project=project_name, config=dict(config), name=f"openclaw-rl-{config['method']}")


def log_training_metrics(step: int, metrics: Mapping[str, Any]) -> None:
    """Log a step to the run of `setup_wandb_logging`. `metrics`: numbers, or tensors of one.

    They are named as NAMES has it, by either name; others go along as they are. All of NAMES are needed but the losses
    of a method. Raises `ValueError` for what is missing, there twice or no number, `OpenClawError` without a run.
    """
    told: dict[str, float] = {}
    for given, value in metrics.items():
        name = NAMES.get(given, given)
        if name in told:
            raise ValueError(f"log_training_metrics: {name} is there twice, also as {given}")
        try:
            told[name] = float(value.detach() if hasattr(value, "detach") else value)  # a loss has its graph with it
        except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several
            raise ValueError(f"log_training_metrics: {given}: expected a number, got {value!r}") from None
    missing = [f"{given} ({name})" for given, name in NAMES.items() if name not in told and name not in _ONE_METHOD]
    if missing:
        raise ValueError(f"log_training_metrics: no {', '.join(missing)}; there are {', '.join(metrics)}")
    if (run := _wandb().run) is None:
        raise OpenClawError("log_training_metrics: no run has begun. Call setup_wandb_logging(project_name, config).")
    run.log(told | {"step": step}, step=step, commit=True)


def _wandb() -> Any:
    try:
        import wandb
    except ImportError:
        raise OpenClawError("wandb is not installed here: `pip install wandb`") from None
    return wandb
