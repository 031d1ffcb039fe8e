"""Activation checkpointing (arXiv:1604.06174): which layers keep their activations until the backward pass.

The other layers keep only their input and are recomputed, with bit-identical results. Unless the settings say all or
none, their number depends on memory: the activation bytes per token and layer are measured once, the free memory
before each pass. The last layers are the ones that keep activations: the backward pass handles them first, so it has
freed all their activations before it recomputes a layer.

Shapes: T tokens of a pass, L layers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from openclaw_rl.errors import ConfigError
from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.model.oom import available_memory, is_alone_on_gpu, trim_malloc

log = logging.getLogger(__name__)
# Share of the free memory, if this process is alone on the GPU.
FREE_SHARE_ALONE = 0.8
# Share of the free memory, if an engine or other programs use the same memory.
FREE_SHARE_SHARED = 0.5
# Bytes of activations per layer, above which `trim_malloc` is worth its time on a CPU.
TRIM_BYTES = 2**25
# Memory reserved for the layer being recomputed and its gradients, in layers.
RESERVED_LAYERS = 2
# Renamed within transformers 5.
ENABLE_METHODS = ("activation_checkpointing_enable", "gradient_checkpointing_enable")


class LayerCheckpointing:
    """Activation checkpointing of one model.

    `token_layer_limit`: maximum of tokens times layers that keep activations, lowered after out-of-memory errors.
    `recomputed_layers`: number of layers that the last pass with gradients recomputes.
    """

    def __init__(self, causal: Any, wanted: bool | None) -> None:
        """`wanted`: all layers (True), none, or by memory (None). Raises `ConfigError` if True is not supported."""
        self._device: torch.device = causal.device
        self._wanted = wanted
        self.recomputed_layers = 0
        # Activation bytes per token and layer.
        self._bytes_per_token = 0.0
        # Of future gradients.
        self._gradient_bytes = 4 * sum(p.numel() for p in causal.parameters() if p.requires_grad)
        self._max_kept = 0
        self.token_layer_limit = math.inf
        self._layers = [
            m for m in causal.get_decoder().modules() if isinstance(m, GradientCheckpointingLayer)
        ]
        can = bool(self._layers) and causal.supports_gradient_checkpointing
        if wanted and not can:
            raise ConfigError(
                "train.gradient_checkpointing true: transformers cannot recompute the layers of a "
                f"{causal.config.model_type} model. Remove the setting, or set it false"
            )
        self._trims_malloc = False
        if self._device.type == "cpu":
            for layer in self._layers:
                layer.register_forward_hook(self._after_layer)
        if wanted is False or not can:
            self._wanted = False
            return
        next(getattr(causal, name) for name in ENABLE_METHODS if hasattr(causal, name))(
            {"use_reentrant": False}
        )
        for layer in self._layers:
            layer.gradient_checkpointing = False
            layer._gradient_checkpointing_func = partial(self._checkpoint_layer, layer)

    @property
    def has_kept_activations(self) -> bool:
        """Whether a pass since the last `halve_kept` kept activations that it could have recomputed."""
        return self._wanted is None and self._max_kept > 0

    def halve_kept(self) -> None:
        """After an out-of-memory error: keep at most half of what the largest pass kept."""
        self.token_layer_limit = min(self.token_layer_limit, self._max_kept / 2)
        self._max_kept = 0

    def measure_layer_bytes(
        self, read: Callable[[Sequence[TokenSequence]], object], tokens: int, vocabulary: int
    ) -> None:
        """Measure the activation bytes per token and layer, from two passes of `read`, of T `tokens` and 2 T tokens.

        `vocabulary`: number of token ids.
        """
        if self._layers:
            short, long = (
                _saved_bytes(partial(read, [_dummy_sequence(n, vocabulary)]))
                for n in (tokens, 2 * tokens)
            )
            self._bytes_per_token = (long - short) / tokens / len(self._layers)

    def plan_pass(self, tokens: int) -> None:
        """Choose the layers to recompute in the next pass of T `tokens` and its backward pass."""
        self._trims_malloc = self._bytes_per_token * tokens >= TRIM_BYTES
        every = len(self._layers)
        again = 0
        if torch.is_grad_enabled():
            before = self.recomputed_layers
            again = every - self._layers_to_keep(tokens)
            self.recomputed_layers = again
            if again != before and self._wanted is None:
                log.info(
                    "%d of %d layers are recomputed in a pass of %d tokens", again, every, tokens
                )
        for place, layer in enumerate(self._layers):
            layer.gradient_checkpointing = layer.training = place < again

    def _layers_to_keep(self, tokens: int) -> int:
        """Return the number of layers that keep their activations."""
        every = len(self._layers)
        if self._wanted is not None:
            return 0 if self._wanted else every
        share = FREE_SHARE_ALONE if is_alone_on_gpu(self._device) else FREE_SHARE_SHARED
        free = share * available_memory(self._device) - self._gradient_bytes
        # Tokens times layers.
        limit = max(0.0, min(self.token_layer_limit, free / max(1.0, self._bytes_per_token)))
        layers = every if limit >= every * tokens else max(0, int(limit / tokens) - RESERVED_LAYERS)
        self._max_kept = max(self._max_kept, layers * tokens)
        return layers

    def _checkpoint_layer(
        self, layer: torch.nn.Module, call: Callable[..., Any], *args: Any
    ) -> Any:
        """Checkpoint a layer. transformers reads `training` as "recompute"; inside, some layers read it for dropout."""

        def run_layer(*inputs: Any) -> Any:
            asked = layer.training
            layer.training = False
            try:
                return call(*inputs)
            finally:
                layer.training = asked
                self._after_layer()

        return checkpoint(run_layer, *args, use_reentrant=False)

    def _after_layer(self, *_: object) -> None:
        """After a layer: return freed memory to the system, as it is fragmented by kept activations."""
        if self._trims_malloc and self._device.type == "cpu":
            trim_malloc()


def _dummy_sequence(tokens: int, vocabulary: int) -> TokenSequence:
    """Return a sequence with `tokens` input tokens, of which the last one is scored."""
    ids = (np.arange(tokens + 1) % vocabulary).astype(np.int32)
    return TokenSequence(prompt_ids=ids[:-1], response_ids=ids[-1:], temperature=1.0)


@torch.enable_grad()
def _saved_bytes(work: Callable[[], object]) -> int:
    """Return the bytes that `work` saves for a backward pass."""
    saved: dict[int, torch.Tensor] = {}

    def record_tensor(tensor: torch.Tensor) -> None:
        # A reference, so that no other tensor reuses its address.
        saved[tensor.untyped_storage().data_ptr()] = tensor

    try:
        with saved_tensors_hooks(record_tensor, _reject_unpack):
            out = work()
        del out
        return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    finally:
        # Breaks a cycle through the graph that the garbage collector cannot see.
        saved.clear()


def _reject_unpack(_: None) -> torch.Tensor:
    raise AssertionError("a pass that is only measured has no backward pass")
