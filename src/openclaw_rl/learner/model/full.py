"""Full fine-tuning: all weights are trained, and a policy is a whole model in transformers layout."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch
from transformers import GenerationConfig

from openclaw_rl.common.policy_digest import ADAPTER_CONFIG, MODEL_CONFIG, weight_files
from openclaw_rl.common.progress import library_call
from openclaw_rl.errors import ConfigError, ModelError
from openclaw_rl.learner.model import peft_adapter
from openclaw_rl.settings.load import ModelConfig, TrainConfig

log = logging.getLogger(__name__)
# A higher rate suits adapters, which need ten times as much (arXiv:2106.09685).
MAX_LEARNING_RATE = 1e-4
# Writing a shard blocks other threads, one of which renews the trainer's lease.
_SHARD_SIZE = "2GB"
_TOKENIZER_FILES = (
    "tokenizer*",
    "*.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
)


@contextmanager
def swapped_data(
    parameters: Mapping[str, torch.nn.Parameter], others: Mapping[str, torch.Tensor]
) -> Iterator[None]:
    """Context in which the parameters have other values. Swaps tensors, not contents: autograd graphs stay valid."""
    originals = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            parameter.data = others[name].to(parameter)
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = originals[name]


class FullWeights:
    """Weights of a policy and a copy of the base weights, which can be swapped in for a while.

    A tied weight (a head tied to the embeddings) counts as one weight.
    """

    dropout = 0.0

    def __init__(self, path: str, train: TrainConfig, model: ModelConfig) -> None:
        """`path`: folder of the base weights. Raises `ModelError`."""
        self._path = Path(path)
        self._config = model
        self.model = self.causal = peft_adapter.load_base(path, model).eval()
        # Unused here; `write` copies the file of the base.
        self.causal.generation_config = GenerationConfig()
        self.parameters = dict(sorted(self.causal.named_parameters()))
        self._base: dict[str, torch.Tensor] = {}
        for name, parameter in self.parameters.items():
            parameter.requires_grad_(True)
            device = torch.device("cpu") if train.optimizer.offload else parameter.device
            self._base[name] = parameter.detach().to(device, copy=True)
        if train.optimizer.learning_rate > MAX_LEARNING_RATE:
            log.warning(
                "train.optimizer.learning_rate %g suits adapters; whole models (train.finetune full) break above "
                "about %g",
                train.optimizer.learning_rate,
                MAX_LEARNING_RATE,
            )

    def using_base(self) -> AbstractContextManager[None]:
        return swapped_data(self.parameters, self._base)

    def reset_to_base(self) -> None:
        self._set_weights(self._base)

    def read(self, folder: Path) -> None:
        if (folder / ADAPTER_CONFIG).exists():
            raise ConfigError(
                f"{folder}: the policy was trained with train.finetune lora, but the settings say full. Set "
                "train.finetune back, or start from the base in a new home."
            )
        if not weight_files(folder):
            raise ModelError(
                f"{folder}: the policy's weights were pruned. Roll back to a version that still has them, and raise "
                "train.checkpoint.keep to keep more."
            )
        own_dtype = str(self.causal.dtype).removeprefix("torch.")
        dtype = own_dtype if self._config.dtype == "auto" else self._config.dtype
        on_cpu = self._config.model_copy(update={"device": "cpu", "dtype": dtype})
        with library_call():
            self._set_weights(dict(peft_adapter.load_base(str(folder), on_cpu).named_parameters()))

    @torch.no_grad()
    def _set_weights(self, state: dict[str, torch.Tensor]) -> None:
        for name, parameter in self.parameters.items():
            if name not in state or state[name].shape != parameter.shape:
                raise ModelError(
                    f"the policy's weights do not fit the base model {self._path}: {name} is missing or has another "
                    "shape. Train from the base that the policy was made for."
                )
        for name, parameter in self.parameters.items():
            parameter.copy_(state[name])

    def write(self, folder: Path) -> None:
        """Write the weights in their training precision, with the other files of the base."""
        with library_call():
            self.causal.save_pretrained(folder, max_shard_size=_SHARD_SIZE)
        config = json.loads((self._path / MODEL_CONFIG).read_text(encoding="utf-8"))
        kind = "torch_dtype" if "torch_dtype" in config else "dtype"
        config[kind] = str(self.causal.dtype).removeprefix("torch.")
        (folder / MODEL_CONFIG).write_text(json.dumps(config, indent=2), encoding="utf-8")
        (folder / "generation_config.json").unlink(missing_ok=True)
        for pattern in ("generation_config.json", *_TOKENIZER_FILES):
            for file in self._path.glob(pattern):
                shutil.copyfile(file, folder / file.name)
