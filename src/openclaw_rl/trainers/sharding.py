"""FSDP2: each rank holds a share of every layer, and the whole of it only while it computes with it.

Embeddings, the last norm and the LM head stay whole on every rank: the head is asked outside of the model's own forward
(see `head`), and of large models they are the smaller part. So does an adapter; its gradients are added up.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from openclaw_rl.errors import ModelError


def shard(causal: Any, trained: set[torch.nn.Parameter], device: str, size: int) -> None:
    """Shard the frozen weights of the decoder's layers over `size` ranks. Raises `ModelError` when it has no layers."""
    decoder = causal.get_decoder()
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        raise ModelError(
            f"{type(decoder).__name__} does not list its layers, so they cannot be shared out over ranks. "
            "Set train.launch.shard false: every rank then holds the whole model"
        )
    inside = {p for layer in layers for p in layer.parameters()}
    whole = {p for p in causal.parameters() if p not in inside}
    mesh = init_device_mesh(device, (size,))
    for layer in layers:
        fully_shard(layer, mesh=mesh, ignored_params=trained)
    fully_shard(decoder, mesh=mesh, ignored_params=trained | whole)
    for module in decoder.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # gradients add up: denominators are of the whole batch
