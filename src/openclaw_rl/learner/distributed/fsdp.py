"""FSDP2: each rank holds a shard of every layer, and the whole layer only while it computes with it.

Embeddings, the last norm and the LM head stay whole on every rank: the head is called outside of the model's forward
(see `lm_head`), and in large models they are the smaller part. Adapters stay whole; their gradients are all-reduced.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig

from openclaw_rl.errors import ModelError
from openclaw_rl.settings.load import ModelConfig, TrainConfig


def wants_sharding(train: TrainConfig, *, cuda: bool) -> bool:
    """Return whether to shard the layers. Only those below an adapter can be, in 16 bits or more."""
    possible = train.finetune == "lora" and train.base_quantization_bits == 16
    return possible and (cuda if train.launch.shard is None else train.launch.shard)


def load_dtype(path: str, model: ModelConfig) -> str:
    """Return the dtype in which a GPU loads the model: that of the settings, else that of the checkpoint."""
    if model.dtype != "auto":
        return model.dtype
    stored = AutoConfig.from_pretrained(path, local_files_only=True).dtype
    return str(stored or torch.float32).removeprefix("torch.")


def shard_layers(
    causal: Any, trained: set[torch.nn.Parameter], device: torch.device, group: Any
) -> None:
    """Shard the frozen weights of the decoder's layers over the ranks, and move everything to `device`.

    `group`: process group of the ranks. Raises `ModelError` if the decoder has no list of layers.
    """
    # Imported here, because the import takes seconds.
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    decoder = causal.get_decoder()
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        raise ModelError(
            f"{type(decoder).__name__} has no list of layers, so they cannot be sharded over ranks. "
            "Set train.launch.shard false: every rank then holds the whole model"
        )
    in_layers = set(layers.parameters())
    whole = set(causal.parameters()) - in_layers
    mesh = DeviceMesh.from_group(group, device.type)
    for layer in layers:
        fully_shard(layer, mesh=mesh, ignored_params=trained)
    fully_shard(decoder, mesh=mesh, ignored_params=trained | whole)
    for module in decoder.modules():
        if isinstance(module, FSDPModule):
            # Sum gradients: denominators are those of the whole batch.
            module.set_gradient_divide_factor(1.0)
    for parameter in whole | trained:
        # Keep the parameter objects.
        parameter.data = parameter.data.to(device)
