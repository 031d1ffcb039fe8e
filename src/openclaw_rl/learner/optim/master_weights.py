"""Master weights: the tensors that the optimizer updates, either the trained weights themselves or copies of them.

Weights in a lower precision get float32 copies: bfloat16 has three digits, so an update of a thousandth of a weight
would be lost. With optimizer offload, the copies are on the CPU. The gradient of each weight is added to the gradient
of its copy, in the copy's precision and on its device, as soon as the backward pass has computed it, and is then freed.
The gradients of all weights therefore never exist at the same time.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import partial

import torch

_HALF_DTYPES = (torch.bfloat16, torch.float16)


class MasterWeights:
    """Master weights by name. The optimizer updates `tensors`; `copy_to_model` then copies them to the model."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], *, offload: bool) -> None:
        """`offload`: keep copies on the CPU for weights of any precision."""
        self._parameters = parameters
        self.tensors: dict[str, torch.nn.Parameter] = {}
        self._copied: list[str] = []
        # Names of masters with a higher precision than their weights.
        self.higher_precision: list[str] = []
        for name, parameter in parameters.items():
            has_half_precision = parameter.dtype in _HALF_DTYPES
            if has_half_precision:
                self.higher_precision.append(name)
            if has_half_precision or offload:
                self._add_copy(name, parameter, on_cpu=offload)
            else:
                self.tensors[name] = parameter

    def _add_copy(self, name: str, parameter: torch.nn.Parameter, *, on_cpu: bool) -> None:
        device = torch.device("cpu") if on_cpu else parameter.device
        self.tensors[name] = torch.nn.Parameter(float32_copy(parameter, device))
        self._copied.append(name)
        # Avoids a reference cycle.
        hook = partial(_take_gradient, weakref.ref(self), name)
        parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def clear_gradients(self) -> None:
        """Clear all gradients, also those of an interrupted backward pass."""
        for tensors in (self._parameters, self.tensors):
            for tensor in tensors.values():
                tensor.grad = None

    @torch.no_grad()
    def copy_from_model(self) -> None:
        """Copy the model weights into the master weights."""
        for name in self._copied:
            self.tensors[name].copy_(self._parameters[name])

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Copy the master weights into the model, rounded to the precision of the model weights."""
        for name in self._copied:
            self._parameters[name].copy_(self.tensors[name])


def _take_gradient(masters: weakref.ref[MasterWeights], name: str, parameter: torch.Tensor) -> None:
    """Add the gradient of a weight to that of its master, and free it; called in the backward pass."""
    owner = masters()
    if owner is None:
        return
    assert parameter.grad is not None
    master = owner.tensors[name]
    # Transfer in the narrower dtype.
    gradient = parameter.grad.to(master.device).to(master.dtype)
    if master.grad is None:
        master.grad = gradient
    else:
        master.grad.add_(gradient)
    parameter.grad = None


def float32_copy(parameter: torch.nn.Parameter, device: torch.device | None = None) -> torch.Tensor:
    """Return a copy in float32 or wider, on the parameter's device unless another one is given."""
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    return parameter.detach().to(device or parameter.device, dtype, copy=True)


class PinnedSnapshot:
    """Snapshot of the tensors of one GPU in pinned host memory.

    The memory is kept between snapshots, because copying a whole 4B model into fresh pages takes ten seconds.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._device = next(iter(tensors.values())).device
        self._copies: dict[str, torch.Tensor] = {}
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def start_copy(self) -> Mapping[str, torch.Tensor]:
        """Start copying the tensors as they are after all GPU work queued so far. Overwrites the last snapshot."""
        if not self._copies:
            self._allocate()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for name, tensor in self._tensors.items():
                self._copies[name].copy_(tensor.detach(), non_blocking=True)
        return self._copies

    def _allocate(self) -> None:
        for name, tensor in self._tensors.items():
            self._copies[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)

    def wait_for_copy(self) -> None:
        """Make GPU work that is queued from now on, such as weight updates, wait until the copies are done."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
