"""FlexAttention over a packed tree: on a GPU, one call for all segments and heads of a layer.

The mask is `j <= i < end[j]`, and for sliding-window layers also `depth[j] > depth[i] - window`. The largest and
smallest values of each block decide which blocks are empty, full or mixed, so no [T, T] tensor is created. One compiled
kernel serves all lengths: trees are padded to whole blocks, and lengths are symbolic.

Shapes: T tokens of the tree, N blocks of the tree, H query heads, G key heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from openclaw_rl.learner.forward.prefix_tree import PrefixTree

BLOCK = 128
# One block would compile another kernel, as sizes of 1 are never symbolic.
MIN_LENGTH = 2 * BLOCK
BACKEND = "inductor"
# Compiled kernels (one per head shape, dtype, window and gradient mode); more raise an error.
MAX_KERNELS = 64

MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def padded_length(tokens: int) -> int:
    """Return the token count rounded up to whole blocks."""
    return max(MIN_LENGTH, -(-tokens // BLOCK) * BLOCK)


class AttentionShape(NamedTuple):
    """Shape of an attention layer, for which one kernel is compiled."""

    heads: int  # H
    groups: int  # G
    size: int  # D
    dtype: torch.dtype
    windowed: bool


class TreeMasks:
    """FlexAttention masks of one tree. The mask of each window is created once and shared by all layers."""

    def __init__(self, tree: PrefixTree) -> None:
        """`tree`: padded to `padded_length`."""
        assert tree.tokens == padded_length(tree.tokens), (
            f"{tree.tokens} tokens are not whole blocks"
        )
        self._end_T = tree.end_T.int()
        self._depth_T = tree.depth_T.int()
        self._made: dict[int | None, BlockMask] = {}
        self.shapes: set[AttentionShape] = set()

    def block_mask(self, window: int | None) -> BlockMask:
        """Return the mask. `window`: visible tokens back in depth, including the token itself; None: up to the root."""
        if window not in self._made:
            self._made[window] = _make_block_mask(self._end_T, self._depth_T, window)
        return self._made[window]


def _make_block_mask(end_T: torch.Tensor, depth_T: torch.Tensor, window: int | None) -> BlockMask:
    tokens = len(end_T)
    end_NB = end_T.view(-1, BLOCK)
    first_N = torch.arange(0, tokens, BLOCK, device=end_T.device, dtype=end_T.dtype)
    # Query blocks after key blocks.
    below_NN = first_N[:, None] > first_N[None]
    some_NN = below_NN & (first_N[:, None] < end_NB.amax(1)[None])
    all_NN = below_NN & (first_N[:, None] + BLOCK <= end_NB.amin(1)[None])
    mask_mod = _causal_mask_mod(end_T)
    if window is not None:
        floor_T = depth_T - window
        floor_NB = floor_T.view(-1, BLOCK)
        depth_NB = depth_T.view(-1, BLOCK)
        some_NN &= depth_NB.amax(1)[None] > floor_NB.amin(1)[:, None]
        all_NN &= depth_NB.amin(1)[None] > floor_NB.amax(1)[:, None]
        mask_mod = _window_mask_mod(end_T, depth_T, floor_T)
    some_NN |= torch.eye(len(first_N), dtype=torch.bool, device=end_T.device)
    return BlockMask.from_kv_blocks(
        *_order_blocks(some_NN & ~all_NN),
        *_order_blocks(all_NN),
        BLOCK_SIZE=BLOCK,
        mask_mod=mask_mod,
        seq_lengths=(tokens, tokens),
    )


def _order_blocks(blocks_NN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (key blocks per query block [1, 1, N], their indices, padded by the other blocks [1, 1, N, N])."""
    counts_N = blocks_NN.sum(1, dtype=torch.int32)
    which_NN = torch.argsort(blocks_NN.int(), dim=1, descending=True, stable=True).int()
    return counts_N[None, None].contiguous(), which_NN[None, None].contiguous()


def _causal_mask_mod(end_T: torch.Tensor) -> MaskMod:
    def sees_token(
        batch: torch.Tensor, head: torch.Tensor, i: torch.Tensor, j: torch.Tensor
    ) -> torch.Tensor:
        return (j <= i) & (i < end_T[j])

    return sees_token


def _window_mask_mod(end_T: torch.Tensor, depth_T: torch.Tensor, floor_T: torch.Tensor) -> MaskMod:
    """Return a windowed mask. The window is in a tensor, because each constant would compile another kernel."""

    def sees_token(
        batch: torch.Tensor, head: torch.Tensor, i: torch.Tensor, j: torch.Tensor
    ) -> torch.Tensor:
        return (j <= i) & (i < end_T[j]) & (depth_T[j] > floor_T[i])

    return sees_token


def _attend_blocks(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: BlockMask, scale: str
) -> Any:
    """`scale` is a string, because a number would become a kernel input instead of a constant."""
    torch._check(query.shape[2] % BLOCK == 0)  # type: ignore[no-untyped-call]  # no partial last block in the kernel
    grouped = query.shape[1] != key.shape[1]
    return flex_attention(
        query, key, value, block_mask=mask, scale=float(scale), enable_gqa=grouped
    )


@cache
def compiled_kernel(backend: str) -> Callable[..., torch.Tensor]:
    """Return the compiled kernel. With `fullgraph`, too many recompilations raise instead of using a [T, T] matrix."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MAX_KERNELS)
    return torch.compile(_attend_blocks, dynamic=True, fullgraph=True, backend=backend)


def attend_tree(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    masks: TreeMasks,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """Return [1, H, T, D]; query [1, H, T, D], key and value [1, G, T, D]. Compiler errors propagate."""
    shape = AttentionShape(
        query.shape[1], key.shape[1], query.shape[3], query.dtype, windowed=window is not None
    )
    masks.shapes.add(shape)
    return compiled_kernel(BACKEND)(query, key, value, masks.block_mask(window), repr(scale))
