"""Ranks that take one step together, and the assignment of work to them.

Every rank runs the same trainer on the same batch. Forward and backward passes are distributed over the ranks, and
their results are sent to all ranks. Everything else is computed on each rank from the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import torch

from openclaw_rl.settings.load import ModelConfig

_T = TypeVar("_T")


class World:
    """Collective operations of a trainer, here those of a single rank; `ProcessGroup` has several.

    Every rank makes the same calls in the same order.
    """

    rank = 0
    size = 1

    def map_over_ranks(
        self, costs: Sequence[int], work: Callable[[int, float], _T], kind: type[_T]
    ) -> list[_T]:
        """Return `work(number, weight)` of each piece of work on every rank; each piece runs on one rank.

        `costs`: tokens of each piece. `weight` is 1, or 0 for a pass without effect that a rank runs only because the
        others run one. `kind`: the result type, which is sent between ranks.
        """
        return [work(number, 1.0) for number in range(len(costs))]

    def all_reduce_grads(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace the gradients of the tensors by their sums over all ranks."""

    def all_true(self, yes: bool) -> bool:
        """Return whether `yes` is true on every rank."""
        return yes

    def device_for(self, path: str, model: ModelConfig) -> ModelConfig:
        """Return the settings with the device and dtype with which this rank loads the model at `path`."""
        return model

    def shard(self, causal: Any, trained: Iterable[torch.nn.Parameter]) -> bool:
        """Shard the layers if the settings ask for it. Return whether they are sharded."""
        return False


def assign(costs: Sequence[int], size: int) -> list[list[int]]:
    """Return the piece numbers of each rank: most expensive first, and counts that differ by at most one."""
    order = sorted(range(len(costs)), key=lambda n: (-costs[n], n))
    shares: list[list[int]] = [[] for _ in range(size)]
    for at, number in enumerate(order):
        deal, place = divmod(at, size)
        shares[place if deal % 2 == 0 else size - 1 - place].append(number)
    return shares


def split(groups: Sequence[Sequence[int]], lengths: Sequence[int], size: int) -> list[list[int]]:
    """Split the longest group in two until there is one group per rank, or only groups of one row.

    `lengths`: tokens of each row. Rows stay in order, because neighbours share the longest prefixes.
    """
    out = [list(group) for group in groups]
    while len(out) < size:
        place = _longest_place(out, lengths)
        if place is None:
            break
        longest = out[place]
        at = _middle([lengths[i] for i in longest])
        out[place : place + 1] = [longest[:at], longest[at:]]
    return out


def _longest_place(groups: Sequence[Sequence[int]], lengths: Sequence[int]) -> int | None:
    """Return the place of the longest group of several rows, or None."""
    places = [place for place, group in enumerate(groups) if len(group) > 1]
    return max(places, key=lambda place: sum(lengths[i] for i in groups[place]), default=None)


def _middle(lengths: Sequence[int]) -> int:
    """Return the number of rows in the first half, so that the longer half is as short as possible."""
    sums = list(accumulate(lengths))
    # The longer half after a cut behind the first row, the second, and so on.
    longer = [max(before, sums[-1] - before) for before in sums[:-1]]
    return 1 + longer.index(min(longer))
