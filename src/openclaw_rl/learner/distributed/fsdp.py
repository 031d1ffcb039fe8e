"""FSDP2: each rank holds a share of every layer, and the whole of it only while it computes with it.

Embeddings, the last norm and the LM head stay whole on every rank: the head is asked outside of the model's own forward
(see `head`), and of large models they are the smaller part. So does an adapter; its gradients are added up.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig

from openclaw_rl.errors import ConfigError, ModelError
from openclaw_rl.settings.load import ModelConfig, TrainConfig


def wanted(train: TrainConfig, *, cuda: bool) -> bool:
    """Whether the layers are to be shared out. Raises `ConfigError` where they cannot be."""
    possible = train.weights == "lora" and train.base_bits == 16
    if train.launch.shard and not possible:
        raise ConfigError(
            "train.launch.shard true shares out the frozen layers below an adapter, in 16 bits or more. With "
            f"train.weights {train.weights} and train.base_bits {train.base_bits} every rank holds the whole model: "
            "set it false"
        )
    return possible and (cuda if train.launch.shard is None else train.launch.shard)


def precision(path: str, model: ModelConfig) -> str:
    """In which a GPU would load the model: as the settings say, or as the checkpoint has it."""
    if model.dtype != "auto":
        return model.dtype
    stored = AutoConfig.from_pretrained(path, local_files_only=True).dtype
    return str(stored or torch.float32).removeprefix("torch.")


def shard(causal: Any, trained: set[torch.nn.Parameter], device: torch.device, group: Any) -> None:
    """Shard the frozen weights of the decoder's layers over the ranks, everything on `device`.

    `group`: the ranks' process group. Raises `ModelError` when the decoder does not list its layers.
    """
    from torch.distributed.device_mesh import DeviceMesh  # what nobody else needs takes seconds to import
    from torch.distributed.fsdp import FSDPModule, fully_shard

    decoder = causal.get_decoder()
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        raise ModelError(
            f"{type(decoder).__name__} does not list its layers, so they cannot be shared out over ranks. "
            "Set train.launch.shard false: every rank then holds the whole model"
        )
    inside = {p for layer in layers for p in layer.parameters()}
    whole = {p for p in causal.parameters() if p not in inside}
    mesh = DeviceMesh.from_group(group, device.type)
    for layer in layers:
        fully_shard(layer, mesh=mesh, ignored_params=trained)
    fully_shard(decoder, mesh=mesh, ignored_params=trained | whole)
    for module in decoder.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # gradients add up: denominators are of the whole batch
    for parameter in whole | trained:
        parameter.data = parameter.data.to(device)  # the same objects for good
