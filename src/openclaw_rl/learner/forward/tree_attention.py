"""Attention over a packed tree: each token attends to its ancestors and itself, and its states are computed once.

Registered with transformers under the name `tree`. The tree is passed as a keyword of the decoder call, in an
`AttentionPlan`. On a GPU, sequences without shared prefixes use a vendor's causal kernel (see `causal_attention`). With
`TreeMasks` in the plan, a tree is one FlexAttention call with the mask `j <= i < end[j]`. Otherwise each segment is one
call of torch's attention on its own path. The keys of the path are gathered temporarily, and again in the backward
pass, so that a long prompt with many replies is stored once.

Shapes: H query heads, G key heads, T tokens of the tree, D head size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface

from openclaw_rl.learner.forward import causal_attention, flex_attention
from openclaw_rl.learner.forward.flex_attention import TreeMasks
from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.forward.prefix_tree import PrefixTree, Segment, build_tree, pad_tree

ATTENTION_NAME = "tree"
# Queries per call if there are ancestors or a window; bounds the size of the mask.
MAX_QUERIES = 1024
# Most unshared sequences with one call each; more sequences use one masked call.
MAX_SPANS = 8
# Score changes of some models, not implemented here.
UNSUPPORTED_ARGUMENTS = ("softcap", "s_aux", "position_bias")


class AttentionPlan:
    """Attention inputs of one pass. Not a dataclass, because the compiler would trace it and recompile per tree."""

    def __init__(self, tree: PrefixTree, masks: TreeMasks | None) -> None:
        """`masks`: for FlexAttention; None: attention segment by segment."""
        self.tree = tree
        self.masks = masks
        self.spans: causal_attention.Spans | None = None
        segments = tree.segments[:-1] if tree.padding else tree.segments
        are_separate = not any(segment.above for segment in segments)
        if are_separate and len(segments) <= MAX_SPANS:
            self.spans = [(segment.start, segment.end) for segment in segments]


def _gather_path(states_1HTD: torch.Tensor, segment: Segment, upto: int) -> torch.Tensor:
    """Return [1, H, depth + own, D]: states of a segment's path and of its own tokens up to `upto`."""
    ranges = (*segment.above, (segment.start, upto))
    return torch.cat([states_1HTD[:, :, a:b] for a, b in ranges], dim=2)


def _window_mask(
    first: int, queries: int, keys: int, window: int | None, device: torch.device
) -> torch.Tensor | None:
    """Return the mask [queries, keys] of queries at depths first, first + 1, ...; None: the plain causal square."""
    if first == 0 and queries == keys and window is None:
        return None
    depth_Q = torch.arange(first, first + queries, device=device)[:, None]
    depth_J = torch.arange(keys, device=device)[None]
    seen = depth_J <= depth_Q
    return seen if window is None else seen & (depth_J > depth_Q - window)


def _windowed_sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, first: int, scale: float,
                   window: int | None) -> torch.Tensor:  # fmt: skip
    """Return the attention of queries at depths first, first + 1, ... to the keys of their path."""
    mask = _window_mask(first, query.shape[2], key.shape[2], window, query.device)
    grouped = query.shape[1] != key.shape[1]
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
    )


def _branch_pieces(tree: PrefixTree) -> list[tuple[Segment, int, int]]:
    """Return (segment, first query, end): all segments with ancestors, in pieces of bounded size."""
    return [
        (segment, at, min(at + MAX_QUERIES, segment.end))
        for segment in tree.segments
        if segment.above
        for at in range(segment.start, segment.end, MAX_QUERIES)
    ]


class _BranchAttention(torch.autograd.Function):
    """Attention output [1, H, T, D], valid only for segments with ancestors.

    Runs piece by piece, saves only its inputs, and recomputes each piece in the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, tree: PrefixTree, scale: float,
                window: int | None) -> torch.Tensor:  # fmt: skip
        ctx.save_for_backward(query, key, value)
        ctx.tree = tree
        ctx.scale = scale
        ctx.window = window
        out = torch.empty_like(query)
        for segment, start, end in _branch_pieces(tree):
            k = _gather_path(key, segment, end)
            v = _gather_path(value, segment, end)
            first = segment.depth + start - segment.start
            out[:, :, start:end] = _windowed_sdpa(
                query[:, :, start:end], k, v, first, scale, window
            )
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        d_query, d_key, d_value = (torch.zeros_like(states) for states in (query, key, value))
        for segment, start, end in _branch_pieces(ctx.tree):
            with torch.enable_grad():
                q = query[:, :, start:end].detach().requires_grad_()
                k, v = (
                    _gather_path(states, segment, end).detach().requires_grad_()
                    for states in (key, value)
                )
                out = _windowed_sdpa(
                    q, k, v, segment.depth + start - segment.start, ctx.scale, ctx.window
                )
                dq, dk, dv = torch.autograd.grad(out, (q, k, v), grads[0][:, :, start:end])
            d_query[:, :, start:end] = dq
            at = 0
            for a, b in (*segment.above, (segment.start, end)):
                d_key[:, :, a:b] += dk[:, :, at : at + b - a]
                d_value[:, :, a:b] += dv[:, :, at : at + b - a]
                at += b - a
        return d_query, d_key, d_value, None, None, None


def attend_by_segments(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tree: PrefixTree,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """Return [1, H, T, D] without FlexAttention; query [1, H, T, D], key and value [1, G, T, D]."""
    below = query
    if any(segment.above for segment in tree.segments):
        below = _BranchAttention.apply(query, key, value, tree, scale, window)  # type: ignore[no-untyped-call]
    parts = []
    for segment in tree.segments:
        start = segment.start
        end = segment.end
        if segment.above:
            parts.append(below[:, :, start:end])
        else:
            parts += _attend_root(
                query[:, :, start:end], key[:, :, start:end], value[:, :, start:end], scale, window
            )
    return torch.cat(parts, dim=2)


def _attend_root(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None
) -> list[torch.Tensor]:
    """Return causal attention of one sequence in pieces; without a window, one piece that needs no mask."""
    tokens = query.shape[2]
    out = []
    for at in range(0, tokens, tokens if window is None else MAX_QUERIES):
        end = tokens if window is None else min(at + MAX_QUERIES, tokens)
        # First key that the first query of the piece sees.
        first = 0 if window is None else max(0, at - window + 1)
        keys = key[:, :, first:end]
        values = value[:, :, first:end]
        out.append(_windowed_sdpa(query[:, :, at:end], keys, values, at - first, scale, window))
    return out


@torch.compiler.disable  # type: ignore[untyped-decorator]  # it calls compiled and vendor kernels itself
def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    plan: AttentionPlan | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention interface of transformers: query [1, H, T, D], key and value [1, G, T, D] -> [1, T, H, D].

    `attention_mask`: result of `_window_only`. Without a plan, runs plain causal attention of rows without left
    padding. Raises `ValueError` for models that change their attention scores.
    """
    unsupported = [name for name in UNSUPPORTED_ARGUMENTS if kwargs.get(name) is not None]
    if unsupported:
        raise ValueError(
            f"its attention uses {unsupported[0]}, which tree attention does not support"
        )
    window = kwargs.get("sliding_window")
    # From `_window_only`; not every model also passes its window to the attention.
    if attention_mask is not None:
        window = int(attention_mask)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if plan is None:
        out = torch.cat(_attend_root(query, key, value, scale, window), dim=2)
    elif window is None and plan.spans and _has_causal_kernel(query, key):
        out = causal_attention.attend_spans(query, key, value, plan.spans, scale)
    elif plan.masks is not None:
        out = flex_attention.attend_tree(query, key, value, plan.masks, scale, window)
    else:
        out = attend_by_segments(query, key, value, plan.tree, scale, window)
    return out.transpose(1, 2).contiguous(), None


def _has_causal_kernel(query: torch.Tensor, key: torch.Tensor) -> bool:
    return causal_attention.has_kernel(
        query.shape[1], key.shape[1], query.shape[3], query.dtype, query.device
    )


def flex_error(call: flex_attention.AttentionShape, device: torch.device) -> float:
    """Return the largest relative error (norm) of FlexAttention outputs and gradients for this shape.

    The reference is `attend_by_segments`. Compiler errors propagate.
    """
    tree = _trial_tree(device)
    masks = TreeMasks(tree)
    window = tree.tokens // 4 if call.windowed else None
    scale = call.size**-0.5
    states = causal_attention.trial_states(
        call.heads, call.groups, tree.tokens, call.size, device, call.dtype
    )
    got, want = (
        causal_attention.outputs_and_grads(attend, states)
        for attend in (
            lambda q, k, v: flex_attention.attend_tree(q, k, v, masks, scale, window),
            lambda q, k, v: attend_by_segments(q, k, v, tree, scale, window),
        )
    )
    return max(causal_attention.relative_error(a, b) for a, b in zip(got, want, strict=True))


def _trial_tree(device: torch.device) -> PrefixTree:
    """Return a trunk with two branches at its end and one in its middle: full, mixed and empty blocks, some padding.

    It has five blocks: the compiler merges equal sizes, and few models have five heads.
    """
    trunk, *branches = (np.arange(n, dtype=np.int32) + 1000 * n for n in (240, 119, 120, 121))
    rows = [
        TokenSequence(
            prompt_ids=np.concatenate([trunk[:start], branch]),
            response_ids=branch[:1],
            temperature=1.0,
        )
        for start, branch in zip((240, 240, 130), branches, strict=True)
    ]
    tree = build_tree(rows, device)
    return pad_tree(tree, flex_attention.padded_length(tree.tokens))


def _window_only(*args: Any, local_size: int | None = None, **kwargs: Any) -> torch.Tensor | None:
    """Return the window of this kind of layer in place of a mask; the tree defines the rest of the mask."""
    return None if local_size is None else torch.tensor(local_size)


AttentionInterface.register(ATTENTION_NAME, tree_attention)
AttentionMaskInterface.register(ATTENTION_NAME, _window_only)
