"""Activation checkpointing (arXiv:1604.06174): which layers keep what is inside them until the backward pass.

The others keep their input and are computed again, which gives the same to the bit. Unless the settings say all or
none, it is as many as memory asks for: what a token keeps in a layer is measured once, what is free before each pass.
The last layers keep theirs: the backward pass takes them first, and so has let all of it go when it comes to a layer
that it must compute again.

Legend: T tokens of a pass, L layers.
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
from openclaw_rl.learner.forward.packing import Row
from openclaw_rl.learner.oom import alone_on, available, give_back

log = logging.getLogger(__name__)
ALONE = 0.8  # of what is free
SHARE = 0.5  # where the engine, or all else that runs, lives in the same memory
LARGE = 2**25  # bytes that a layer keeps, from which on a CPU's malloc is worth tidying
BESIDE = 2  # layers' worth, for the one that is computed again, with its gradients
NAMED = ("activation_checkpointing_enable", "gradient_checkpointing_enable")  # transformers renamed it within 5


class Recompute:
    """Of one model.

    `room`: tokens times layers that may keep what is inside them, from what did not fit before. `again`: layers that
    the last pass with gradients computes again.
    """

    def __init__(self, causal: Any, wanted: bool | None) -> None:
        """`wanted`: all layers, none, or as many as memory asks for. Raises `ConfigError` where none can be."""
        self._device: torch.device = causal.device
        self._wanted, self.again = wanted, 0
        self._bytes = 0.0  # that a token keeps in a layer
        self._owed = 4 * sum(p.numel() for p in causal.parameters() if p.requires_grad)  # gradients, yet to be made
        self._most, self.room = 0, math.inf
        self._layers = [m for m in causal.get_decoder().modules() if isinstance(m, GradientCheckpointingLayer)]
        can = bool(self._layers) and causal.supports_gradient_checkpointing
        if wanted and not can:
            raise ConfigError(
                f"train.checkpointing true: the layers of a {causal.config.model_type} model cannot be computed again "
                "by transformers. Leave it out, or set it false"
            )
        self._large = False
        if self._device.type == "cpu":
            for layer in self._layers:
                layer.register_forward_hook(self._passed)
        if wanted is False or not can:
            self._wanted = False
            return
        next(getattr(causal, name) for name in NAMED if hasattr(causal, name))({"use_reentrant": False})
        for layer in self._layers:
            layer.gradient_checkpointing = False
            layer._gradient_checkpointing_func = partial(self._again, layer)

    @property
    def holds(self) -> bool:
        """Whether a pass since the last `shrink` kept what it could have computed again."""
        return self._wanted is None and self._most > 0

    def shrink(self) -> None:
        """A pass did not fit: from now on half of what the largest has kept."""
        self.room, self._most = min(self.room, self._most / 2), 0

    def measure(self, read: Callable[[Sequence[Row]], object], tokens: int, vocabulary: int) -> None:
        """Learn what a token keeps, from two passes of `read`, of T `tokens` and twice as many.

        `vocabulary`: ids that there are.
        """
        if self._layers:
            short, long = (_kept(partial(read, [_row(n, vocabulary)])) for n in (tokens, 2 * tokens))
            self._bytes = (long - short) / tokens / len(self._layers)

    def fit(self, tokens: int) -> None:
        """For the pass of T `tokens` that comes next, from its first layer to the end of its backward pass."""
        self._large = self._bytes * tokens >= LARGE
        every, again = len(self._layers), 0
        if torch.is_grad_enabled():
            before, again = self.again, every - self._keeps(tokens)
            self.again = again
            if again != before and self._wanted is None:
                log.info("%d of %d layers are computed again in a pass of %d tokens", again, every, tokens)
        for place, layer in enumerate(self._layers):
            layer.gradient_checkpointing = layer.training = place < again

    def _keeps(self, tokens: int) -> int:
        """How many layers keep what is inside them."""
        every = len(self._layers)
        if self._wanted is not None:
            return 0 if self._wanted else every
        free = (ALONE if alone_on(self._device) else SHARE) * available(self._device) - self._owed
        room = max(0.0, min(self.room, free / max(1.0, self._bytes)))
        kept = every if room >= every * tokens else max(0, int(room / tokens) - BESIDE)
        self._most = max(self._most, kept * tokens)
        return kept

    def _again(self, layer: torch.nn.Module, call: Callable[..., Any], *args: Any) -> Any:
        """transformers asks `training` whether to compute again; within, some layers ask it for their own dropout."""

        def plain(*given: Any) -> Any:
            asked, layer.training = layer.training, False
            try:
                return call(*given)
            finally:
                layer.training = asked
                self._passed()

        return checkpoint(plain, *args, use_reentrant=False)

    def _passed(self, *_: object) -> None:
        """A layer has been computed. What it freed lies between what it keeps."""
        if self._large and self._device.type == "cpu":
            give_back()


def _row(tokens: int, vocabulary: int) -> Row:
    """That feeds so many tokens, the last of which is asked for."""
    ids = (np.arange(tokens + 1) % vocabulary).astype(np.int32)
    return Row(prompt_ids=ids[:-1], response_ids=ids[-1:], temperature=1.0)


@torch.enable_grad()
def _kept(work: Callable[[], object]) -> int:
    """Bytes that `work` keeps for a backward pass."""
    held: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> None:
        held[tensor.untyped_storage().data_ptr()] = tensor  # as long as it is in here, no other has its place

    try:
        with saved_tensors_hooks(keep, _no_way_back):
            out = work()
        del out
        return sum(tensor.untyped_storage().nbytes() for tensor in held.values())
    finally:
        held.clear()  # the graph holds `keep`, so `held`, so itself, where no garbage collector looks


def _no_way_back(_: None) -> torch.Tensor:
    raise AssertionError("a pass that is only measured has no backward pass")
