"""The outputs of some layers of a model, in a forward pass that ends behind the last of them.

The layers behind it, and the head over the vocabulary, are not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn
from transformers import PreTrainedModel


class LayersRead(Exception):
    """Raised in the forward pass behind the last layer that is read."""


class LayerOutputs:
    """Context manager that keeps the outputs [N, Q, D] of layers, and raises `LayersRead` behind `last`.

    `outputs`: in the order of `layers`, after the pass.
    """

    def __init__(self, layers: Sequence[nn.Module], last: nn.Module) -> None:
        self._layers = layers
        self._last = last
        self._outputs: dict[nn.Module, Tensor] = {}

    def __enter__(self) -> Self:
        self._hooks = [
            layer.register_forward_hook(self._keep_output) for layer in {*self._layers, self._last}
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for hook in self._hooks:
            hook.remove()

    @property
    def outputs(self) -> list[Tensor]:
        return [self._outputs[layer] for layer in self._layers]

    def _keep_output(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        # Some families return a tuple that begins with the states.
        self._outputs[layer] = output if isinstance(output, Tensor) else output[0]
        if layer is self._last:
            raise LayersRead


def find_layers(model: nn.Module, count: int) -> Sequence[nn.Module] | None:
    """Return the `count` decoder layers of a model; None if it keeps them in no list."""
    # A model of pictures and words has other layers beside those of its decoder.
    decoder = model.get_decoder() if isinstance(model, PreTrainedModel) else model
    lists = (module for module in decoder.modules() if isinstance(module, nn.ModuleList))
    return next((list(one) for one in lists if len(one) == count), None)
