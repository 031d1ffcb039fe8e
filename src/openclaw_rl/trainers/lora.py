"""A linear layer with an adapter: the adapter's weights are float32, its products of the base's precision.

PEFT computes the adapter in the precision of its weights. Over a base in bfloat16 that copies each layer's input to
float32 once for every matrix beside it, keeps those copies for the backward pass, and multiplies without tensor cores.
Engines multiply in the base's precision, too, so nothing is trained that they do not serve.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch.nn import functional

ADAPTER = "default"


def lean(model: Any) -> None:
    """Have every adapted linear layer of a PEFT model compute so. For bases in float32 and wider nothing changes."""
    for module in model.modules():
        if isinstance(module, LoraLayer) and ADAPTER in module.lora_A:
            module.__class__ = _lean(type(module))  # type: ignore[arg-type]


@cache
def _lean(kind: type[torch.nn.Module]) -> type[torch.nn.Module]:
    """A class, and no method for each layer: what is compiled for one layer then fits all of them."""
    return type(kind.__name__, (kind,), {"forward": _forward})


def _forward(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """[..., out] of [..., in]; the adapter's two weights are [rank, in] and [out, rank]."""
    out = layer.base_layer(x)
    if layer.disable_adapters:
        return out  # type: ignore[no-any-return]
    a, b, scale = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight, layer.scaling[ADAPTER]
    low = functional.linear(layer.lora_dropout[ADAPTER](x.to(out.dtype)), a.to(out.dtype))
    if out.dtype in (torch.bfloat16, torch.float16):  # scaled where it is narrowest
        return out + functional.linear(low * scale, b.to(out.dtype))  # type: ignore[no-any-return]
    return out + functional.linear(low, b) * scale  # type: ignore[no-any-return]
