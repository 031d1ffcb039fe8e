"""Copies of a GPU's tensors in the CPU's memory, made while the GPU computes on."""

from __future__ import annotations

from collections.abc import Mapping

import torch


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
