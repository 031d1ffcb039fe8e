"""Attention of sequences that share nothing: a vendor's causal kernel, called once for each.

Where layers are computed again in the backward pass, this is not: what it gave is kept with the pass, two bytes for
each number of it, a fifth of what recomputing a layer costs at 16,384 tokens.

Legend: H query heads, G key heads, T tokens, n of one sequence, D head size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

log = logging.getLogger(__name__)
aten = torch.ops.aten
_WIDE = 0.03  # in norm, of half precision
_TRIAL = 384

States = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Given = tuple[torch.Tensor, tuple[Any, ...]]  # the output [1, H, n, D], and what the backward pass needs besides
Kept = dict[int, list[Given]]
"""Of one pass: what attention gave, by layer, until the layer is computed again."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Causal attention of one sequence: query [1, H, n, D], key and value [1, G, n, D].

    `forward` is called without gradients; its output is kept, so it must be a tensor that nothing else has.
    """

    name: str
    forward: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], Given]
    backward: Callable[[torch.Tensor, States, Given, float], States]


def _cudnn(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Given:
    out, *rest = aten._scaled_dot_product_cudnn_attention(query, key, value, None, True, 0.0, True, False, scale=scale)
    return out, tuple(rest[:-1])


def _cudnn_backward(d_out: torch.Tensor, states: States, given: Given, scale: float) -> States:
    out, (sums, cum_q, cum_k, max_q, max_k, seed, offset) = given
    return aten._scaled_dot_product_cudnn_attention_backward(  # type: ignore[no-any-return]
        d_out, *states, out, sums, seed, offset, None, cum_q, cum_k, max_q, max_k, 0.0, True, scale=scale
    )


def _flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Given:
    out, *rest = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, True, False, scale=scale)
    return out, tuple(rest[:-1])


def _flash_backward(d_out: torch.Tensor, states: States, given: Given, scale: float) -> States:
    out, (sums, cum_q, cum_k, max_q, max_k, seed, offset) = given
    return aten._scaled_dot_product_flash_attention_backward(  # type: ignore[no-any-return]
        d_out, *states, out, sums, cum_q, cum_k, max_q, max_k, 0.0, True, seed, offset, scale=scale
    )


def _spread(query: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """[1, H, n, D] of [1, G, n, D]."""
    return states.repeat_interleave(query.shape[1] // states.shape[1], dim=1)


def _host(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Given:
    key, value = _spread(query, key), _spread(query, value)
    out, sums = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, True, scale=scale)
    return out, (sums,)


def _host_backward(d_out: torch.Tensor, states: States, given: Given, scale: float) -> States:
    query, key, value = states
    out, (sums,) = given
    d_query, d_key, d_value = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        d_out, query, _spread(query, key), _spread(query, value), out, sums, 0.0, True, scale=scale
    )
    groups = key.shape[1]
    return d_query, d_key.unflatten(1, (groups, -1)).sum(2), d_value.unflatten(1, (groups, -1)).sum(2)


HOST = Kernel("cpu", _host, _host_backward)
DEVICE = (Kernel("cuDNN", _cudnn, _cudnn_backward), Kernel("flash", _flash, _flash_backward))


class _Causal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kernel: Kernel,
                spans: Sequence[tuple[int, int]], scale: float, kept: Kept, layer: int) -> torch.Tensor:  # fmt: skip
        ctx.save_for_backward(query, key, value)
        given = kept.pop(layer, None)
        if given is None:
            given = [kernel.forward(query[:, :, a:b], key[:, :, a:b], value[:, :, a:b], scale) for a, b in spans]
            if any(ctx.needs_input_grad):
                kept[layer] = given
        ctx.kernel, ctx.spans, ctx.scale, ctx.given = kernel, spans, scale, given
        if list(spans) == [(0, query.shape[2])]:
            return given[0][0].detach()  # not the tensor itself: what is kept must know nothing of its graph
        out = torch.empty_like(query)
        for (a, b), (part, _) in zip(spans, given, strict=True):
            out[:, :, a:b] = part
        out[:, :, spans[-1][1] :] = 0  # padding
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        states = ctx.saved_tensors
        if list(ctx.spans) == [(0, states[0].shape[2])]:
            return *ctx.kernel.backward(grads[0], states, ctx.given[0], ctx.scale), None, None, None, None, None
        found = tuple(torch.zeros_like(s) for s in states)
        for (a, b), given in zip(ctx.spans, ctx.given, strict=True):
            parts = tuple(s[:, :, a:b] for s in states)
            for whole, part in zip(
                found, ctx.kernel.backward(grads[0][:, :, a:b], parts, given, ctx.scale), strict=True
            ):
                whole[:, :, a:b] = part
        return *found, None, None, None, None, None


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kernel: Kernel,
           spans: Sequence[tuple[int, int]], scale: float, kept: Kept, layer: int) -> torch.Tensor:  # fmt: skip
    """[1, H, T, D] of sequences that lie one behind the other in `spans`, zeros behind the last."""
    return _Causal.apply(query, key, value, kernel, spans, scale, kept, layer)  # type: ignore[no-any-return, no-untyped-call]


@cache
def kernel_for(heads: int, groups: int, size: int, dtype: torch.dtype, device: torch.device) -> Kernel | None:
    """The fastest one that computes attention of this shape, as tried once on random states; None: there is none."""
    if device.type == "cpu":
        return HOST
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return None
    recent = torch.cuda.get_device_capability(device) >= (9, 0)
    for kernel in DEVICE if recent else DEVICE[1:]:
        try:
            gap = gap_of(kernel, heads, groups, size, dtype, device)
        except RuntimeError as error:
            log.info("causal attention by %s does not work here: %s", kernel.name, error)
            continue
        if gap <= _WIDE:
            return kernel
        log.warning("causal attention by %s is off by %.3g here, and not used", kernel.name, gap)
    return None


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@torch.enable_grad()
def gap_of(kernel: Kernel, heads: int, groups: int, size: int, low: torch.dtype, device: torch.device) -> float:
    """How far outputs and gradients are from plain attention in float32 at least, relative in norm.

    May be asked within a layer: what is tried is none of what that layer's checkpoint counts.
    """
    with saved_tensors_hooks(_as_it_is, _as_it_is):
        return _gap(kernel, heads, groups, size, low, device)


def _gap(kernel: Kernel, heads: int, groups: int, size: int, low: torch.dtype, device: torch.device) -> float:
    random = torch.Generator().manual_seed(0)
    states = [torch.randn(1, n, _TRIAL, size, generator=random) for n in (heads, groups, groups, heads)]

    def seen(dtype: torch.dtype, way: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
             ) -> list[torch.Tensor]:  # fmt: skip
        asked = [state.to(device, low).to(dtype).requires_grad_() for state in states[:3]]
        out = way(*asked)
        return [out.detach(), *torch.autograd.grad((out * states[3].to(device, dtype)).sum(), asked)]

    def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        parts = [_plain(query[:, :, a:b], key[:, :, a:b], value[:, :, a:b], scale) for a, b in spans]
        return torch.cat(parts, dim=2)

    spans, scale = ((0, _TRIAL // 3), (_TRIAL // 3, _TRIAL)), size**-0.5
    got = seen(low, lambda q, k, v: attend(q, k, v, kernel, spans, scale, {}, 0))
    want = seen(torch.promote_types(low, torch.float32), plain)
    return max(float((a.to(b.dtype) - b).norm() / b.norm()) for a, b in zip(got, want, strict=True))


def _plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
