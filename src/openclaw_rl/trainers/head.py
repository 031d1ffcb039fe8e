"""The LM head in chunks: log-probability and entropy of chosen tokens, without ever holding [K, V].

Legend: K response tokens, C of one chunk, H hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

FLOATS = 2**24  # logits held at once: 64 MiB in float32

Pair = tuple[torch.Tensor, torch.Tensor]


def select(
    head: torch.nn.Module,
    hidden_KH: torch.Tensor,
    targets_K: torch.Tensor,
    temperature_K: torch.Tensor,
    *,
    floats: int = FLOATS,
) -> Pair:
    """(logp_K, entropy_K in nats), in float32 at least, at each token's temperature. No gradient flows into entropy."""
    vocabulary = int(head.weight.shape[0]) if isinstance(head.weight, torch.Tensor) else len(hidden_KH)
    size = max(1, floats // vocabulary)
    columns = (hidden_KH, targets_K, temperature_K)
    if type(head) is torch.nn.Linear and getattr(head, "bias", None) is None:
        pair: Pair = _Select.apply(hidden_KH, head.weight, targets_K, temperature_K, size)  # type: ignore[no-untyped-call]
        return pair
    parts = [tuple(column[at : at + size] for column in columns) for at in range(0, len(hidden_KH), size)]
    pairs = [checkpoint(_through, head, *part, use_reentrant=False) for part in parts]
    logp, entropy = zip(*pairs, strict=True)
    return torch.cat(logp), torch.cat(entropy)


def _through(head: torch.nn.Module, hidden_CH: torch.Tensor, targets_C: torch.Tensor, temperature_C: torch.Tensor
             ) -> Pair:  # fmt: skip
    """A head with something in it (an adapter, a bias): autograd does the rest."""
    logits_CV = head(hidden_CH)
    logits_CV = logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32)) / temperature_C.unsqueeze(-1)
    logp_C, entropy_C, _ = _chosen(logits_CV, targets_C)
    return logp_C, entropy_C.detach()


def _chosen(logits_CV: torch.Tensor, targets_C: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logp_C, entropy_C, log of the partition function)."""
    log_z_C = torch.logsumexp(logits_CV, dim=-1)
    logp_C = logits_CV.gather(-1, targets_C.unsqueeze(-1)).squeeze(-1) - log_z_C
    with torch.no_grad():
        entropy_C = log_z_C - (torch.softmax(logits_CV, dim=-1) * logits_CV).sum(-1)
    return logp_C, entropy_C, log_z_C


def _logits(hidden_CH: torch.Tensor, weight_VH: torch.Tensor, temperature_C: torch.Tensor) -> torch.Tensor:
    """[C, V] in float32 at least; a GPU adds half-precision products up in float32."""
    wide = torch.promote_types(hidden_CH.dtype, torch.float32)
    if hidden_CH.is_cuda and hidden_CH.dtype is not wide:
        logits_CV = torch.mm(hidden_CH, weight_VH.T, out_dtype=wide)
    else:
        logits_CV = torch.mm(hidden_CH, weight_VH.T).to(wide)
    return logits_CV.div_(temperature_C.unsqueeze(-1))


class _Select(torch.autograd.Function):
    """d logp[t] / d logits = (onehot - softmax) / T; logits are made again, and the head's gradient is added up wide.

    Rounding each chunk's share of that gradient to half precision would bias it.
    """

    @staticmethod
    def forward(ctx: Any, hidden_KH: torch.Tensor, weight_VH: torch.Tensor, targets_K: torch.Tensor,
                temperature_K: torch.Tensor, size: int) -> Pair:  # fmt: skip
        parts = []
        for at in range(0, len(hidden_KH), size):
            end = at + size
            logits_CV = _logits(hidden_KH[at:end], weight_VH, temperature_K[at:end])
            parts.append(_chosen(logits_CV, targets_K[at:end]))
        logp_K, entropy_K, log_z_K = (torch.cat(column) for column in zip(*parts, strict=True))
        ctx.save_for_backward(hidden_KH, weight_VH, targets_K, temperature_K, log_z_K)
        ctx.size = size
        ctx.mark_non_differentiable(entropy_K)
        return logp_K, entropy_K

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_KH, weight_VH, targets_K, temperature_K, log_z_K = ctx.saved_tensors
        d_hidden = torch.empty_like(hidden_KH) if ctx.needs_input_grad[0] else None
        wide = log_z_K.dtype
        d_weight = torch.zeros_like(weight_VH, dtype=wide) if ctx.needs_input_grad[1] else None
        for at in range(0, len(hidden_KH), ctx.size):
            end = at + ctx.size
            hidden_CH, temperature_C = hidden_KH[at:end], temperature_K[at:end]
            logits_CV = _logits(hidden_CH, weight_VH, temperature_C)
            g_C1 = (grads[0][at:end] / temperature_C).unsqueeze(-1)
            d_logits_CV = logits_CV.sub_(log_z_K[at:end].unsqueeze(-1)).exp_().mul_(-g_C1)
            d_logits_CV.scatter_add_(-1, targets_K[at:end].unsqueeze(-1), g_C1)
            if d_hidden is not None:
                d_hidden[at:end] = torch.mm(d_logits_CV.to(weight_VH.dtype), weight_VH)
            if d_weight is not None:
                d_weight.addmm_(d_logits_CV.T, hidden_CH.to(wide))
        return d_hidden, None if d_weight is None else d_weight.to(weight_VH.dtype), None, None, None
