"""States of the last policies in memory, so that a trainer of many policies does not read their files again.

The files remain the truth: a state is looked up by the folder that it was written to, after the files in it were
compared with their digests. A file that was removed is not replaced by the memory of it, so that the next step is the
same as after a restart.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

import torch

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentState:
    """The content of the files of a policy: trained weights, state of the optimizer, moving average of the teacher."""

    weights: Tensors
    optimizer: Tensors
    teacher: Tensors

    @property
    def nbytes(self) -> int:
        tensors = chain(self.weights.values(), self.optimizer.values(), self.teacher.values())
        return sum(tensor.nbytes for tensor in tensors)


class ResidentStates:
    """The states that were used last, up to a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        # The one that was used last is at the end.
        self._states: OrderedDict[str, ResidentState] = OrderedDict()
        self._nbytes = 0

    @property
    def is_on(self) -> bool:
        return self._max_bytes > 0

    def __contains__(self, folder: str) -> bool:
        return folder in self._states

    def take(self, folder: str) -> ResidentState | None:
        """Return the state of this folder, which is forgotten here: the trainer has it then; None without it."""
        state = self._states.pop(folder, None)
        if state is not None:
            self._nbytes -= state.nbytes
        return state

    def add(self, folder: str, state: ResidentState) -> None:
        """Keep a state, and forget those that were not used for longest while there are too many bytes."""
        self.take(folder)
        if state.nbytes > self._max_bytes:
            return
        self._states[folder] = state
        self._nbytes += state.nbytes
        while self._nbytes > self._max_bytes:
            _, oldest = self._states.popitem(last=False)
            self._nbytes -= oldest.nbytes


def copy_tensors(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return copies in the memory of the machine, pinned if they come from a GPU."""
    copies = {}
    for name, tensor in tensors.items():
        source = tensor.detach()
        copied = torch.empty(
            source.shape, dtype=source.dtype, pin_memory=source.device.type == "cuda"
        )
        copies[name] = copied.copy_(source)
    return copies
