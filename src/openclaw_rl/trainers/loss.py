"""The loss: clipped surrogates over terms, and k2 to the base (docs/paper_index.md states each formula).

Legend: K response tokens of a micro-batch. mu: sampled log-probability, pi: of the policy being trained, both at the
temperature under which the token was sampled. One step a batch, so one correction: rho = pi / mu, and no second one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

MAX_LOG_RATIO = 20.0  # beyond it exp() overflows; the gap mask has long taken such tokens out


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """clip(rho, low, high), dual clip c, and the band [gap_low, gap_high] outside of which a token is masked."""

    clip_low: float
    clip_high: float
    dual_clip: float
    gap_low: float
    gap_high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TermSlice:
    """The part of a `Term` that falls on these K tokens; the denominator is that of the whole batch."""

    name: str
    weight: float
    advantages_K: torch.Tensor
    mask_K: torch.Tensor  # bool
    denominator: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The loss of a micro-batch, its parts (unweighted), and counts of tokens by name."""

    total: torch.Tensor
    parts: Mapping[str, float]
    counts: Mapping[str, int]


def ratio(logp_K: torch.Tensor, mu_K: torch.Tensor) -> torch.Tensor:
    """rho = pi / mu."""
    return torch.exp(torch.clamp(logp_K - mu_K, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def in_band(rho_K: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    """[K] bool, detached: engine and trainer agree well enough on this token (IcePop; arXiv:2512.16144, eq. 1)."""
    rho = rho_K.detach()
    return (rho >= bounds.gap_low) & (rho <= bounds.gap_high)


def surrogate(rho_K: torch.Tensor, advantages_K: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    """[K] -min(rho A, clip(rho) A), and for A < 0 never above -c A.

    The clip is wider above (arXiv:2503.14476); the dual clip is of arXiv:1912.09729.
    """
    clipped = torch.clamp(rho_K, bounds.clip_low, bounds.clip_high)
    loss = -torch.minimum(rho_K * advantages_K, clipped * advantages_K)
    return torch.where(advantages_K < 0, torch.minimum(loss, -bounds.dual_clip * advantages_K), loss)


def k2(logp_K: torch.Tensor, base_K: torch.Tensor, rho_K: torch.Tensor) -> torch.Tensor:
    """[K] sg(rho) (log pi - log base)^2 / 2: its gradient is that of KL(pi || base) (arXiv:2510.01555).

    k1 as a loss would be noise (its expected gradient is zero), k3 is biased.
    """
    return rho_K.detach() * 0.5 * (logp_K - base_K).square()


def batch_loss(
    *,
    logp_K: torch.Tensor,
    mu_K: torch.Tensor,
    base_K: torch.Tensor,
    terms: Sequence[TermSlice],
    kl_coef: float,
    kl_denominator: float,
    bounds: Bounds,
) -> Loss:
    """sum over terms of w * sum(surrogate) / denominator, plus kl_coef * sum(k2) / kl_denominator.

    A token counts where its term's mask and the gap band both hold; masked tokens stay in the denominator, so that
    masking one does not make the others heavier. KL stands wherever any term does.
    """
    rho_K = ratio(logp_K, mu_K)
    band_K = in_band(rho_K, bounds)
    zero = torch.zeros((), dtype=logp_K.dtype, device=logp_K.device)
    total = zero
    anywhere_K = torch.zeros_like(band_K)
    parts: dict[str, float] = {}
    counts: dict[str, int] = {}
    for term in terms:
        part = _masked_sum(surrogate(rho_K, term.advantages_K, bounds), term.mask_K & band_K) / term.denominator
        total = total + term.weight * part
        anywhere_K = anywhere_K | term.mask_K
        parts[term.name] = part.item()
        counts |= _counts(term, rho_K.detach(), band_K, bounds)
    penalty = _masked_sum(k2(logp_K, base_K, rho_K), anywhere_K & band_K) / kl_denominator
    counts["gap"] = int((anywhere_K & ~band_K).sum())
    return Loss(total=total + kl_coef * penalty, parts=parts | {"kl": penalty.item()}, counts=counts)


def _masked_sum(values_K: torch.Tensor, mask_K: torch.Tensor) -> torch.Tensor:
    return torch.where(mask_K, values_K, torch.zeros_like(values_K)).sum()


def _counts(term: TermSlice, rho_K: torch.Tensor, band_K: torch.Tensor, bounds: Bounds) -> dict[str, int]:
    """Tokens in the term, and of those the ones whose gradient the clip takes away."""
    live_K = term.mask_K & band_K
    up_K = (term.advantages_K > 0) & (rho_K > bounds.clip_high)
    down_K = (term.advantages_K < 0) & ((rho_K < bounds.clip_low) | (rho_K > bounds.dual_clip))
    return {
        f"tokens/{term.name}": int(term.mask_K.sum()),
        f"clipped/{term.name}": int((live_K & (up_K | down_K)).sum()),
    }
