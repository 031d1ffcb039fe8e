"""Compilation of the parts of each layer: norms, rotations and gates become one kernel each.

Only the children of a layer are compiled (attention before and after its kernel, the feed-forward part, the norms).
The layer itself stays Python, so that activation checkpointing and sharding work unchanged. Layers share the code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

BACKEND = "inductor"
# Recompilations: gradients, adapter and dropout, each on or off, times the kinds of layers.
MAX_VARIANTS = 64


def compiled_modules(causal: Any) -> Iterator[torch.nn.Module]:
    """Yield the modules to compile."""
    for layer in causal.get_decoder().modules():
        if isinstance(layer, GradientCheckpointingLayer):
            yield from layer.children()


def compile_parts(causal: Any) -> None:
    """Compile the parts of the layers. Compiler errors are raised by the first pass.

    Call `torch.set_num_threads` before the first backward pass of the process. Otherwise autograd may use another
    number of threads, and recomputed layers are compiled again.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MAX_VARIANTS)
    for part in compiled_modules(causal):
        part.compile(dynamic=True, backend=BACKEND)


def interpret_parts(causal: Any) -> None:
    """Undo `compile_parts`."""
    for part in compiled_modules(causal):
        part._compiled_call_impl = None
