"""Attention of sequences without shared prefixes on a GPU: one call of a vendor's causal kernel per sequence.

Shapes: H query heads, G key heads, T tokens, D head size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

log = logging.getLogger(__name__)
# In order of preference.
KERNELS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
_HALF_DTYPES = (torch.bfloat16, torch.float16)
# Largest accepted relative error (norm) in half precision.
_MAX_ERROR = 0.03
_TRIAL_TOKENS = 384

Spans = Sequence[tuple[int, int]]
_AttentionFn = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def attend_spans(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, spans: Spans, scale: float
) -> torch.Tensor:
    """Return [1, H, T, D]: attention of the consecutive sequences in `spans`, and zeros after the last one.

    query [1, H, T, D], key and value [1, G, T, D]. Raises `RuntimeError` if no kernel of `KERNELS` supports the shape.
    """
    with sdpa_kernel(KERNELS, set_priority=True):
        parts = _causal_parts(query, key, value, spans, scale)
    rest = query.shape[2] - spans[-1][1]
    if rest > 0:
        parts.append(torch.zeros_like(query[:, :, :rest]))
    return torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]


def _causal_parts(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, spans: Spans, scale: float
) -> list[torch.Tensor]:
    attend = partial(
        functional.scaled_dot_product_attention,
        is_causal=True,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return [attend(query[:, :, a:b], key[:, :, a:b], value[:, :, a:b]) for a, b in spans]


@cache
def has_kernel(
    heads: int, groups: int, size: int, dtype: torch.dtype, device: torch.device
) -> bool:
    """Return whether a kernel supports this attention shape; tried once on random states."""
    if device.type != "cuda" or dtype not in _HALF_DTYPES:
        return False
    try:
        gap = kernel_error(heads, groups, size, dtype, device)
    except RuntimeError as error:
        log.info("no causal kernel for %d heads of %d: %s", heads, size, error)
        return False
    if not gap <= _MAX_ERROR:
        log.warning(
            "the causal kernel for %d heads of %d has an error of %.3g here and is not used",
            heads,
            size,
            gap,
        )
    return gap <= _MAX_ERROR


def kernel_error(
    heads: int, groups: int, size: int, dtype: torch.dtype, device: torch.device
) -> float:
    """Return the largest relative error (norm) of outputs and gradients against float32 (or wider) attention.

    Safe inside a checkpointed layer, because the trial tensors are not saved by its checkpoint.
    """
    spans = ((0, _TRIAL_TOKENS // 3), (_TRIAL_TOKENS // 3, _TRIAL_TOKENS))
    scale = size**-0.5
    with saved_tensors_hooks(lambda saved: saved, lambda saved: saved):
        states = trial_states(heads, groups, _TRIAL_TOKENS, size, device, dtype)
        got = outputs_and_grads(lambda q, k, v: attend_spans(q, k, v, spans, scale), states)
        wide = torch.promote_types(dtype, torch.float32)
        wide_states = [state.to(wide) for state in states]
        want = outputs_and_grads(
            lambda q, k, v: torch.cat(_causal_parts(q, k, v, spans, scale), dim=2), wide_states
        )
        return max(relative_error(a, b) for a, b in zip(got, want, strict=True))


def trial_states(
    heads: int, groups: int, tokens: int, size: int, device: torch.device, dtype: torch.dtype
) -> list[torch.Tensor]:
    """Return random query, key, value and output gradient [1, H or G, T, D]."""
    random = torch.Generator().manual_seed(0)
    shapes = ((1, n, tokens, size) for n in (heads, groups, groups, heads))
    return [torch.randn(shape, generator=random).to(device, dtype) for shape in shapes]


@torch.enable_grad()
def outputs_and_grads(attend: _AttentionFn, states: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the output of `attend` and the gradients of its three inputs, for `trial_states`."""
    inputs = [state.clone().requires_grad_() for state in states[:3]]
    out = attend(*inputs)
    return [out.detach(), *torch.autograd.grad((out * states[3]).sum(), inputs)]


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return the norm of the difference relative to the norm of `want`."""
    return float((got.to(want.dtype) - want).norm() / want.norm())
