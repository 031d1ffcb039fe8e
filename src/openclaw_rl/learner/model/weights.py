"""What is trained: an adapter in a frozen base, or all weights of the model (see `full`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from openclaw_rl.common.policy_digest import ADAPTER_CONFIG, MODEL_CONFIG
from openclaw_rl.errors import ConfigError
from openclaw_rl.learner.model import peft_adapter, quantized
from openclaw_rl.learner.model.full import Full
from openclaw_rl.settings.load import ModelConfig, TrainConfig


class Weights(Protocol):
    """The weights of a policy, and of the base below it."""

    model: Any
    """What is put into training mode."""
    causal: Any
    """The causal language model of transformers, the trained weights within it."""
    parameters: dict[str, torch.nn.Parameter]
    """What is trained, by name, in a fixed order; the same objects for good."""
    dropout: float
    """Of what is trained, while it is trained."""

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Within, a forward pass is the base's."""
        ...

    def reset(self) -> None:
        """Stand on the base again."""
        ...

    def read(self, folder: Path) -> None:
        """Stand on a policy. Raises `ModelError` or `ConfigError` when its files do not fit."""
        ...

    def write(self, folder: Path) -> None:
        """The policy as files that engines load; equal weights give equal bytes."""
        ...


class Lora:
    """A LoRA adapter (arXiv:2106.09685) in a frozen base, which may have 4 bits (arXiv:2305.14314).

    The adapter is float32 whatever the base is, and so is what the optimizer keeps of it.
    """

    def __init__(self, path: str, train: TrainConfig, model: ModelConfig) -> None:
        """`path`: folder of the base weights. Raises `ModelError`, `ConfigError`."""
        load = quantized.load_base if train.base_bits == 4 else peft_adapter.load_base
        self.model = peft_adapter.attach(load(path, model), path, train.lora, train.seed)
        self.causal = self.model.get_base_model()
        self.parameters = peft_adapter.trainable(self.model)
        self.dropout = train.lora.dropout
        self._fresh = peft_adapter.tensors(self.model)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        with self.model.disable_adapter():
            yield

    def reset(self) -> None:
        peft_adapter.put(self.model, self._fresh)

    def read(self, folder: Path) -> None:
        if not (folder / ADAPTER_CONFIG).exists() and (folder / MODEL_CONFIG).exists():
            raise ConfigError(
                f"{folder}: the policy was trained with train.weights full, the settings say lora. Set train.weights "
                "back, or start from the base in a new home."
            )
        peft_adapter.read(self.model, folder)

    def write(self, folder: Path) -> None:
        for name, raw in peft_adapter.to_files(self.model).items():
            (folder / name).write_bytes(raw)


def make(path: str, train: TrainConfig, model: ModelConfig) -> Weights:
    """The weights that the settings want trained. Raises `ConfigError` where they contradict one another."""
    if train.weights == "lora":
        return Lora(path, train, model)
    if train.base_bits != 16:
        raise ConfigError(
            f"train.weights full trains the base itself, which then cannot be held in {train.base_bits} bits. "
            "Set train.weights lora, or train.base_bits 16"
        )
    return Full(path, train, model)
