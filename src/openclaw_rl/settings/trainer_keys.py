"""Settings of the train section that only some trainers read."""

from __future__ import annotations

from openclaw_rl.settings.schema_train import (
    TrainDistillConfig,
    TrainLossConfig,
    TrainOptimizerConfig,
)

LOCAL_KEYS = (
    "train.base_quantization_bits",
    "train.gradient_checkpointing",
    "train.compile",
    "train.gpus",
    "train.loss.path",
    *(
        f"train.distill.{key}"
        for key in TrainDistillConfig.model_fields
        if key not in ("opd_clip", "hint_choice")
    ),
    "train.lora.dropout",
    "train.batch.epochs",
    "train.batch.micro_tokens",
    "train.optimizer.offload",
)
"""Read only by the trainer that computes in this package."""
FORMULA_KEYS = tuple(
    key
    for key in (
        *(f"train.optimizer.{key}" for key in TrainOptimizerConfig.model_fields),
        *(f"train.loss.{key}" for key in TrainLossConfig.model_fields),
        *(f"train.distill.{key}" for key in TrainDistillConfig.model_fields),
        "train.seed",
        "train.threads",
    )
    if key not in LOCAL_KEYS
)
"""Read by trainers that compute the loss of this package."""
ADAPTER_KEYS = ("train.lora.alpha", "train.lora.targets")
"""Read by trainers that choose the layers of the adapter."""
