"""The parts of each layer as compiled code: norms, rotations and gates become one kernel each.

What is compiled are the children of a layer (attention up to and after its kernel, the feed-forward part, the norms):
the layer itself stays Python, so that checkpointing and shards work as ever. All layers share one piece of code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

BACKEND = "inductor"
KINDS = 64  # with and without gradients, adapter on and off, with and without dropout, times the kinds of layers


def parts(causal: Any) -> Iterator[torch.nn.Module]:
    """What is compiled."""
    for layer in causal.get_decoder().modules():
        if isinstance(layer, GradientCheckpointingLayer):
            yield from layer.children()


def compile_parts(causal: Any) -> None:
    """From now on. What a compiler raises, the first pass raises.

    `torch.set_num_threads` must have been called before the process's first backward pass: autograd's threads may have
    a number of their own otherwise, and what a checkpoint computes again is compiled a second time for it.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, KINDS)
    for part in parts(causal):
        part.compile(dynamic=True, backend=BACKEND)


def interpret_parts(causal: Any) -> None:
    """As they were."""
    for part in parts(causal):
        part._compiled_call_impl = None
