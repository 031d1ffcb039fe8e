"""The stored weights that an adapter changes: W + scale · BA, as factors (LoRA, arXiv:2106.09685).

Shapes: a linear layer stores W [out, in]; GPT-2's Conv1D stores its transpose [in, out].
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from openclaw_rl.engines.adapter_file import AdapterFile, RawTensor
from openclaw_rl.errors import ModelError
from openclaw_rl.model_export.base_weights import FLOAT_BYTES, Shard
from openclaw_rl.render.model_folder import ModelFiles

TORCH_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_ACTIVATED_OPTION = "alora_invocation_tokens"


class Factors(NamedTuple):
    """A weight changes by `left` [rows, rank] times `right` [rank, columns], in the shape in which it is stored."""

    left: torch.Tensor
    right: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUpdate:
    """The change of one stored weight by the adapter of a module."""

    adapter: AdapterFile
    module: str
    transposed: bool  # stored as [in, out]

    def read_factors(self, dtype: torch.dtype) -> Factors:
        """Return the factors in `dtype`, with the scale of the module in `left`."""
        a, b = (
            _read_matrix(self.adapter.buffer, raw).to(dtype)
            for raw in self.adapter.pairs[self.module]
        )
        scale = self.adapter.scale(self.module)
        return Factors(a.T * scale, b.T) if self.transposed else Factors(b * scale, a)


def plan_updates(
    files: ModelFiles, shards: Sequence[Shard], adapter: AdapterFile
) -> dict[str, WeightUpdate]:
    """Return the updates by the name of the stored tensor.

    Raises `ModelError` if the adapter cannot be folded into these weights: it acts on some tokens only, a module is no
    linear layer, its weight is shared with another module, or no stored tensor fits it.
    """
    where = f"version {adapter.ref.version}"
    if adapter.config.get(_ACTIVATED_OPTION):
        raise ModelError(
            f"{where} is an activated LoRA ({_ACTIVATED_OPTION}): it acts only after certain tokens, and merged "
            "weights act on all. Serve it as an adapter"
        )
    model = _empty_model(files)
    stored = {tensor.name: tensor for shard in shards for tensor in shard.tensors}
    shared = _shared_weights(model)
    updates: dict[str, WeightUpdate] = {}
    for module, (a, b) in adapter.pairs.items():
        layer = _find_layer(model, module)
        if not isinstance(layer, nn.Linear | Conv1D):
            kind = "has no such module" if layer is None else f"has a {type(layer).__name__} there"
            raise ModelError(
                f"{where} adapts {module}, but the base {kind}. Only linear layers can be merged"
            )
        if f"{module}.weight" in shared:
            raise ModelError(
                f"{where} adapts {module}, whose weight is also that of {shared[f'{module}.weight']}: merged, both "
                "would change. Serve it as an adapter, or train without it in train.lora.targets"
            )
        name = next((n for n in _stored_names(model, module) if n in stored), None)
        if name is None:
            raise ModelError(
                f"{where} adapts {module}, and no file of {files.folder} has a tensor of that name. Load the base with "
                "transformers, save it with `save_pretrained`, and give that folder"
            )
        transposed = isinstance(layer, Conv1D)
        expected = (a.shape[1], b.shape[0]) if transposed else (b.shape[0], a.shape[1])
        tensor = stored[name]
        if tensor.shape != expected or tensor.dtype not in FLOAT_BYTES:
            raise ModelError(
                f"{where} changes {name} as {list(expected)}, but the base has {tensor.dtype} {list(tensor.shape)}. "
                "Give the base that the version was trained from, in 16 or 32 bits"
            )
        updates[name] = WeightUpdate(adapter=adapter, module=module, transposed=transposed)
    return updates


def _empty_model(files: ModelFiles) -> Any:
    """Return the model without the contents of its weights. Raises `ModelError`."""
    try:
        config = AutoConfig.from_pretrained(files.folder, local_files_only=True)
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"{files.folder}: transformers cannot build this model: {error}"
        ) from error


def _find_layer(model: nn.Module, module: str) -> nn.Module | None:
    try:
        return model.get_submodule(module)
    except AttributeError:
        return None


def _shared_weights(model: nn.Module) -> Mapping[str, str]:
    """Return weights that have two names, such as a head that is tied to the embeddings: name -> another name."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {
        name: other for same in names.values() for name in same for other in same if other != name
    }


def _stored_names(model: Any, module: str) -> tuple[str, ...]:
    """Return the names that the weight of a module may have in files: with and without the prefix of the base model."""
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    return f"{module}.weight", f"{module}.weight".removeprefix(prefix)


def _read_matrix(buffer: bytearray, raw: RawTensor) -> torch.Tensor:
    if raw.dtype not in TORCH_TYPES:
        raise ModelError(
            f"a matrix of the adapter has the type {raw.dtype}, expected one of {', '.join(TORCH_TYPES)}"
        )
    count = raw.shape[0] * raw.shape[1]
    return torch.frombuffer(
        buffer, dtype=TORCH_TYPES[raw.dtype], count=count, offset=raw.begin
    ).reshape(raw.shape)
