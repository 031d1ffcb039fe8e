"""Helper for scripts: attach a LoRA adapter to a model in the same way as the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from openclaw_rl.errors import ConfigError
from openclaw_rl.learner.model.peft_adapter import attach_lora
from openclaw_rl.settings.load import LoraConfig

_DEFAULT = LoraConfig()


def setup_lora_model(
    base_model: Any,
    lora_rank: int = _DEFAULT.rank,
    lora_alpha: float = _DEFAULT.alpha,
    lora_dropout: float = _DEFAULT.dropout,
    target_modules: Sequence[str] | Literal["all-linear"] = _DEFAULT.targets,
    *,
    seed: int = 0,
) -> Any:
    """Return a PEFT model over a causal `base_model` of transformers, in the base's mode (train or eval).

    The adapter starts as the identity and depends only on `seed`. The number of trainable parameters is printed. Raises
    `ValueError` for values out of range, `ConfigError` when `target_modules` match none of the linear layers.
    """
    targets = target_modules if target_modules == "all-linear" else tuple(target_modules)
    lora = LoraConfig(rank=lora_rank, alpha=lora_alpha, dropout=lora_dropout, targets=targets)
    training = base_model.training
    try:
        model = attach_lora(base_model, base_model.config.name_or_path, lora, seed)
    except ConfigError as error:
        raise ConfigError(
            str(error).replace("train.lora.targets", "setup_lora_model: target_modules")
        ) from error
    model.print_trainable_parameters()
    return model.train(training)
