"""The ranks that take one step together, and who of them does what. `Alone`: there is only one.

Every rank runs the same trainer over the same batch; what costs time (forward and backward passes) is dealt out, and
each rank learns what all of them found. Everything else is computed on each rank, from the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, Protocol, TypeVar

import torch

from openclaw_rl.settings.load import ModelConfig

_T = TypeVar("_T")


class World(Protocol):
    """What a trainer asks of the others. Every rank makes the same calls in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def each(self, costs: Sequence[int], work: Callable[[int, float], _T], kind: type[_T]) -> list[_T]:
        """What `work(number, weight)` gives for each piece of work, on every rank; each is done on one of them.

        `costs`: of each piece, in tokens. `weight` is 1; 0 for a pass that is only made because others make one, and
        changes nothing. `kind`: the type of what it gives, which travels.
        """
        ...

    def add_up(self, tensors: Iterable[torch.Tensor]) -> None:
        """Their gradients become the sums over all ranks."""
        ...

    def agree(self, yes: bool) -> bool:
        """Whether every rank says yes."""
        ...

    def placed(self, path: str, model: ModelConfig) -> ModelConfig:
        """The settings with the device, and the precision, in which this rank loads the model at `path`."""
        ...

    def spread(self, causal: Any, trained: Iterable[torch.nn.Parameter]) -> bool:
        """Hold a share of the layers only, where that is wanted. Whether it is."""
        ...


class Alone:
    """One process, which does everything."""

    rank, size = 0, 1

    def each(self, costs: Sequence[int], work: Callable[[int, float], _T], kind: type[_T]) -> list[_T]:
        return [work(number, 1.0) for number in range(len(costs))]

    def add_up(self, tensors: Iterable[torch.Tensor]) -> None:
        return

    def agree(self, yes: bool) -> bool:
        return yes

    def placed(self, path: str, model: ModelConfig) -> ModelConfig:
        return model

    def spread(self, causal: Any, trained: Iterable[torch.nn.Parameter]) -> bool:
        return False


def dealt(costs: Sequence[int], size: int) -> list[list[int]]:
    """Of each rank, the numbers of its pieces: the costliest first, and as many as the others have, or one fewer."""
    order = sorted(range(len(costs)), key=lambda n: (-costs[n], n))
    hands: list[list[int]] = [[] for _ in range(size)]
    for at, number in enumerate(order):
        turn, place = divmod(at, size)
        hands[place if turn % 2 == 0 else size - 1 - place].append(number)
    return hands


def cut(groups: Sequence[Sequence[int]], lengths: Sequence[int], size: int) -> list[list[int]]:
    """The groups, the longest cut in two until there is one for each rank, or nothing left to cut.

    `lengths`: of each row, in tokens. Rows stay in order: neighbours share the most.
    """
    out = [list(group) for group in groups]
    while len(out) < size and (many := [group for group in out if len(group) > 1]):
        longest = max(many, key=lambda group: sum(lengths[i] for i in group))
        at = _middle([lengths[i] for i in longest])
        place = out.index(longest)
        out[place : place + 1] = [longest[:at], longest[at:]]
    return out


def _middle(lengths: Sequence[int]) -> int:
    """Where to cut so that the longer part is as short as can be."""
    sums = list(accumulate(lengths))
    return min(range(1, len(lengths)), key=lambda at: max(sums[at - 1], sums[-1] - sums[at - 1]))
