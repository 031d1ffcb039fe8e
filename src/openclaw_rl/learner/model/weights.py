"""Trained weights of a policy: an adapter in a frozen base, or the whole model (`full.py`)."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch

from openclaw_rl.common.policy_digest import ADAPTER_CONFIG, MODEL_CONFIG
from openclaw_rl.errors import ConfigError
from openclaw_rl.learner.model import peft_adapter, quantized
from openclaw_rl.learner.model.full import FullWeights
from openclaw_rl.settings.load import ModelConfig, TrainConfig

log = logging.getLogger(__name__)
# A lower rate suits whole models; adapters need ten times as much (arXiv:2106.09685).
MIN_LORA_RATE = 1e-5


class PolicyWeights(Protocol):
    """Weights of a policy and of its base."""

    model: Any  # module whose training mode is set
    causal: Any  # causal language model of transformers that contains the trained weights
    # Trained parameters, in a fixed order; the objects never change.
    parameters: dict[str, torch.nn.Parameter]
    dropout: float  # dropout of the trained layers during training

    def using_base(self) -> AbstractContextManager[None]:
        """Context in which forward passes use the base weights."""

    def reset_to_base(self) -> None:
        """Return to the base."""

    def read(self, folder: Path) -> None:
        """Load a policy. Raises `ModelError` or `ConfigError` if its files do not match."""

    def write(self, folder: Path) -> None:
        """Write the policy as files that engines load; equal weights give equal bytes."""


class LoraWeights:
    """LoRA adapter (arXiv:2106.09685) in a frozen base, which may have 4 bits (arXiv:2305.14314).

    The adapter and its optimizer state are float32 for any dtype of the base.
    """

    def __init__(self, path: str, train: TrainConfig, model: ModelConfig) -> None:
        """`path`: folder of the base weights. Raises `ModelError`, `ConfigError`."""
        load = (
            quantized.load_quantized_base
            if train.base_quantization_bits == 4
            else peft_adapter.load_base
        )
        self.model = peft_adapter.attach_lora(load(path, model), path, train.lora, train.seed)
        self.causal = self.model.get_base_model()
        named = sorted(self.model.named_parameters())
        self.parameters = {name: p for name, p in named if p.requires_grad}
        self.dropout = train.lora.dropout
        self._initial_adapter = peft_adapter.adapter_tensors(self.model)
        rate = train.optimizer.learning_rate
        if rate < MIN_LORA_RATE:
            log.warning(
                "train.optimizer.learning_rate %g suits whole models; an adapter (train.finetune lora) learns little "
                "or nothing below about %g",
                rate,
                MIN_LORA_RATE,
            )

    def using_base(self) -> AbstractContextManager[None]:
        return self.model.disable_adapter()  # type: ignore[no-any-return]

    def reset_to_base(self) -> None:
        peft_adapter.set_adapter_tensors(self.model, self._initial_adapter)

    def read(self, folder: Path) -> None:
        if not (folder / ADAPTER_CONFIG).exists() and (folder / MODEL_CONFIG).exists():
            raise ConfigError(
                f"{folder}: the policy was trained with train.finetune full, but the settings say lora. Set "
                "train.finetune back, or start from the base in a new home."
            )
        peft_adapter.read_adapter(self.model, folder)

    def write(self, folder: Path) -> None:
        for name, raw in peft_adapter.to_files(self.model).items():
            (folder / name).write_bytes(raw)


def make_weights(path: str, train: TrainConfig, model: ModelConfig) -> PolicyWeights:
    """Return the weights that the settings select."""
    if train.finetune == "lora":
        return LoraWeights(path, train, model)
    assert train.base_quantization_bits == 16, "the settings were checked"
    return FullWeights(path, train, model)
