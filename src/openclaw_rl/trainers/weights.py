"""What is trained: an adapter in a frozen base."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from openclaw_rl.config import ModelConfig, TrainConfig
from openclaw_rl.trainers import adapter


class Weights(Protocol):
    """The weights of a policy, and of the base below it."""

    model: Any
    """What is put into training mode."""
    causal: Any
    """The causal language model of transformers, the trained weights within it."""
    parameters: dict[str, torch.nn.Parameter]
    """What is trained, by name, in a fixed order."""

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

    def files(self) -> dict[str, bytes]:
        """The policy as files that engines load; equal weights give equal bytes."""
        ...


class Lora:
    """A LoRA adapter (arXiv:2106.09685) in a frozen base."""

    def __init__(self, path: str, train: TrainConfig, model: ModelConfig) -> None:
        """`path`: folder of the base weights. Raises `ModelError`, `ConfigError`."""
        self.model = adapter.attach(adapter.load_base(path, model), path, train.lora, train.seed)
        self.causal = self.model.get_base_model()
        self.parameters = adapter.trainable(self.model)
        self._fresh = adapter.tensors(self.model)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        with self.model.disable_adapter():
            yield

    def reset(self) -> None:
        adapter.put(self.model, self._fresh)

    def read(self, folder: Path) -> None:
        adapter.read(self.model, folder)

    def files(self) -> dict[str, bytes]:
        return adapter.to_files(self.model)


def make(path: str, train: TrainConfig, model: ModelConfig) -> Weights:
    """The weights that the settings want trained."""
    return Lora(path, train, model)
