"""KV cache of the running sequences: one tensor with a slot per row and token.

Shape legend: L layers, N rows, H key/value heads, C capacity in tokens, D head size, Q new tokens.
Token t of a row is in slot t. Slots beyond a row's length contain stale values, which the attention mask hides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

# Tokens; the capacity is a multiple of it.
_CAPACITY_STEP = 128
# Bytes; smaller caches are not freed.
_MIN_FREED_BYTES = 2**26


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """Shape, dtype and device of the states of one token."""

    layers: int
    heads: int
    dim: int
    dtype: torch.dtype
    device: torch.device


class KVCache:
    """KV cache tensor [L, 2, N, H, C, D]. When full, the rows double and the capacity grows by a quarter."""

    def __init__(self, layout: CacheLayout) -> None:
        self.layout = layout
        self.data = self._allocate_tensor(0, 0)

    def _allocate_tensor(self, rows: int, capacity: int) -> Tensor:
        at = self.layout
        return torch.zeros(
            at.layers, 2, rows, at.heads, capacity, at.dim, dtype=at.dtype, device=at.device
        )

    @property
    def capacity(self) -> int:
        return self.data.shape[4]

    def reserve(self, rows: int, length: int) -> None:
        """Grow to `rows` rows of `length` tokens, plus one spare slot per row for writes of padding."""
        have_rows = self.data.shape[2]
        have = self.capacity
        if rows <= have_rows and length < have:
            return
        while have_rows < rows:
            have_rows = max(1, 2 * have_rows)
        if have <= length:
            grown = have + max(_CAPACITY_STEP, have // 4)
            steps = math.ceil(max(length + 1, grown) / _CAPACITY_STEP)
            have = steps * _CAPACITY_STEP
        old = self.data
        self.data = self._allocate_tensor(have_rows, have)
        self.data[:, :, : old.shape[2], :, : old.shape[4]] = old

    def free_memory(self) -> None:
        """Free the memory if it is large; call only when no row is in use."""
        if self.data.nbytes > _MIN_FREED_BYTES:
            self.data = self._allocate_tensor(0, 0)
            if self.layout.device.type == "cuda":
                # So that a trainer on the same device can use it.
                torch.cuda.empty_cache()

    def row_states(self, row: int, length: int) -> Tensor:
        """Return the states [L, 2, H, length, D] of a row's first tokens, as a view."""
        return self.data[:, :, row, :, :length]

    def write_row(self, row: int, *pieces: Tensor) -> None:
        """Write consecutive pieces of states to a row, starting at its first token."""
        at = 0
        for states in pieces:
            end = at + states.shape[3]
            self.data[:, :, row, :, at:end] = states
            at = end


class KVCacheView(Cache):  # type: ignore[misc]  # transformers is untyped here
    """Adapter from `KVCache` to the transformers cache interface, for one forward pass.

    `positions_NQ`: the slot that each new token is written to; `length`: number of tokens that attention reads.
    """

    def __init__(self, kv_cache: KVCache, positions_NQ: Tensor, length: int) -> None:
        super().__init__(layers=[])
        self._kv_cache = kv_cache
        self._positions_NQ = positions_NQ
        self._rows_N1 = torch.arange(positions_NQ.shape[0], device=positions_NQ.device)[:, None]
        self._length = length

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values [N, H, Q, D]; return those of all tokens [N, H, length, D]."""
        keys, values = self._kv_cache.data[layer_idx]
        keys[self._rows_N1, :, self._positions_NQ] = key_states.transpose(1, 2)
        values[self._rows_N1, :, self._positions_NQ] = value_states.transpose(1, 2)
        rows = key_states.shape[0]
        return keys[:rows, :, : self._length], values[:rows, :, : self._length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._length - self._positions_NQ.shape[1]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._length, 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.get_seq_length()
