"""What the optimizer works on: the trained weights themselves, or copies of them.

Copies, in float32, where the weights are of a lower precision: an update of a thousandth of a weight is lost in
bfloat16, which has three digits. Copies on the CPU, where the optimizer is to take no room on the GPU. A copy's
gradient is added up in its own precision and place as soon as each weight's is known, which is then let go: gradients
of all weights are never held at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import partial

import torch

_LOW = (torch.bfloat16, torch.float16)


class Masters:
    """Of some weights, by name. `tensors`: what the optimizer changes; `publish` brings the weights after it."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], *, offload: bool) -> None:
        """`offload`: copies on the CPU, whatever the weights' precision."""
        self._parameters = parameters
        self.tensors: dict[str, torch.nn.Parameter] = {}
        self._apart: list[str] = []
        self.finer: list[str] = []  # those that say more than the weights do
        for name, parameter in parameters.items():
            low = parameter.dtype in _LOW
            if not low and not offload:
                self.tensors[name] = parameter
                continue
            self.tensors[name] = torch.nn.Parameter(_copy(parameter, offload=offload))
            self._apart.append(name)
            self.finer += [name] if low else []
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(_collect, weakref.ref(self), name)  # a hook that held the masters would hold its own weight
            )

    def _collect(self, name: str, parameter: torch.Tensor) -> None:
        """Called in the backward pass: move a gradient to its master."""
        assert parameter.grad is not None
        master = self.tensors[name]
        gradient = parameter.grad.to(master.device).to(master.dtype)  # the narrower one travels
        master.grad = gradient if master.grad is None else master.grad.add_(gradient)
        parameter.grad = None

    def forget(self) -> None:
        """No gradients any more, not even those of a backward pass that was broken off."""
        for tensors in (self._parameters, self.tensors):
            for tensor in tensors.values():
                tensor.grad = None

    @torch.no_grad()
    def follow(self) -> None:
        """The masters are what the weights are."""
        for name in self._apart:
            self.tensors[name].copy_(self._parameters[name])

    @torch.no_grad()
    def publish(self) -> None:
        """The weights are what the masters are, as far as their precision goes."""
        for name in self._apart:
            self._parameters[name].copy_(self.tensors[name])


def _collect(masters: weakref.ref[Masters], name: str, parameter: torch.Tensor) -> None:
    if (there := masters()) is not None:
        there._collect(name, parameter)


def _copy(parameter: torch.nn.Parameter, *, offload: bool) -> torch.Tensor:
    device = torch.device("cpu") if offload else parameter.device
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    return parameter.detach().to(device, dtype, copy=True)


class Aside:
    """Of some tensors of one GPU, by name.

    The copies' memory is locked, and kept from one time to the next: into fresh pages a whole 4B takes ten seconds.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._device = next(iter(tensors.values())).device
        self._copies: dict[str, torch.Tensor] = {}
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def take(self) -> Mapping[str, torch.Tensor]:
        """The tensors as what is queued on the GPU so far leaves them. Overwrites what was taken before."""
        if not self._copies:
            for name, tensor in self._tensors.items():
                self._copies[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for name, tensor in self._tensors.items():
                self._copies[name].copy_(tensor.detach(), non_blocking=True)
        return self._copies

    def wait(self) -> None:
        """Whatever is queued on the GPU from now on, changes of the tensors above all, comes after the copies."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
