"""The loss: clipped surrogates over terms, and k2 to the base (docs/paper_index.md states each formula).

Legend: K response tokens of a micro-batch. mu: sampled log-probability, pi: of the policy being trained, both at the
temperature under which the token was sampled. With one step a batch there is one correction: rho = pi / mu, and no
second one. With several, the step's own ratio pi / old is clipped, and old / mu is a capped weight (decoupled).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

MAX_LOG_RATIO = 20.0  # beyond it exp() overflows; the gap mask has long taken such tokens out


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Which surrogate, clip(rho, low, high), dual clip c, and the band [gap_low, gap_high] that tokens must lie in.

    `kind`: clip (PPO's, token by token), cispo (arXiv:2506.13585: the ratio is a capped weight on log pi), gspo
    (arXiv:2507.18071: the ratio is the sequence's, the geometric mean of its tokens').
    """

    clip_low: float
    clip_high: float
    dual_clip: float
    gap_low: float
    gap_high: float
    kind: Literal["clip", "cispo", "gspo"] = "clip"
    cispo_high: float = 5.0
    gspo_low: float = 1 - 3e-4
    gspo_high: float = 1 + 4e-4
    weight_cap: float = 2.0  # of old / mu, with several steps a batch


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


def sequence_ratio(logp_K: torch.Tensor, from_K: torch.Tensor, mask_K: torch.Tensor, rows_K: torch.Tensor
                   ) -> torch.Tensor:  # fmt: skip
    """[K] each token's sequence ratio exp(mean log rho), with its own token's gradient (arXiv:2507.18071, GSPO-token).

    Over the tokens of `mask_K`; `rows_K` says whose token each is.
    """
    log_rho_K = torch.clamp(logp_K.detach() - from_K, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    rows = int(rows_K.max()) + 1 if len(rows_K) else 0
    weight_K = mask_K.to(log_rho_K.dtype)
    sums = torch.zeros(rows, dtype=log_rho_K.dtype, device=log_rho_K.device).index_add_(0, rows_K, log_rho_K * weight_K)
    counts = torch.zeros_like(sums).index_add_(0, rows_K, weight_K)
    return torch.exp(sums / counts.clamp(min=1))[rows_K] * torch.exp(logp_K - logp_K.detach())


def surrogate(rho_K: torch.Tensor, logp_K: torch.Tensor, advantages_K: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    """[K] -min(rho A, clip(rho) A), and for A < 0 never above -c A; or CISPO's -sg(min(rho, cap)) A log pi.

    The clip is wider above (arXiv:2503.14476); the dual clip is of arXiv:1912.09729.
    """
    if bounds.kind == "cispo":
        return -rho_K.detach().clamp(max=bounds.cispo_high) * advantages_K * logp_K
    low, high = (bounds.gspo_low, bounds.gspo_high) if bounds.kind == "gspo" else (bounds.clip_low, bounds.clip_high)
    loss = -torch.minimum(rho_K * advantages_K, torch.clamp(rho_K, low, high) * advantages_K)
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
    old_K: torch.Tensor | None = None,
    rows_K: torch.Tensor | None = None,
) -> Loss:
    """sum over terms of w * sum(surrogate) / denominator, plus kl_coef * sum(k2) / kl_denominator.

    A token counts where its term's mask and the gap band both hold; masked tokens stay in the denominator, so that
    masking one does not make the others heavier. KL stands wherever any term does. `old_K`: the policy before the first
    of several steps (decoupled, arXiv:2110.00641): then old / mu is a weight of at most `weight_cap` instead of a band.
    `rows_K` (needed by gspo): whose token each is.
    """
    rho_K, from_K, weight_K = ratio(logp_K, mu_K), mu_K, torch.ones_like(mu_K)
    band_K = in_band(rho_K, bounds)
    if old_K is not None:
        from_K, weight_K = old_K, ratio(old_K, mu_K).clamp(max=bounds.weight_cap)
        band_K = torch.ones_like(band_K)
    step_K = rho_K if old_K is None else ratio(logp_K, old_K)
    zero = torch.zeros((), dtype=logp_K.dtype, device=logp_K.device)
    total = zero
    anywhere_K = torch.zeros_like(band_K)
    parts: dict[str, float] = {}
    counts: dict[str, int] = {}
    for term in terms:
        if bounds.kind == "gspo":
            assert rows_K is not None, "gspo needs to know whose token each is"
            step_K = sequence_ratio(logp_K, from_K, term.mask_K & band_K, rows_K)
        losses_K = weight_K * surrogate(step_K, logp_K, term.advantages_K, bounds)
        part = _masked_sum(losses_K, term.mask_K & band_K) / term.denominator
        total = total + term.weight * part
        anywhere_K = anywhere_K | term.mask_K
        parts[term.name] = part.item()
        counts |= _counts(term, step_K.detach(), band_K, bounds)
    # In the decoupled form the same two factors as above: a token that engine and trainer see differently stays capped.
    reach_K = rho_K if old_K is None else weight_K * ratio(logp_K, old_K)
    penalty = _masked_sum(k2(logp_K, base_K, reach_K), anywhere_K & band_K) / kl_denominator
    counts["gap"] = int((anywhere_K & ~band_K).sum())
    return Loss(total=total + kl_coef * penalty, parts=parts | {"kl": penalty.item()}, counts=counts)


def _masked_sum(values_K: torch.Tensor, mask_K: torch.Tensor) -> torch.Tensor:
    return torch.where(mask_K, values_K, torch.zeros_like(values_K)).sum()


def _counts(term: TermSlice, rho_K: torch.Tensor, band_K: torch.Tensor, bounds: Bounds) -> dict[str, int]:
    """Tokens in the term, and of those the ones whose gradient the clip takes away."""
    live_K = term.mask_K & band_K
    low, high = (bounds.gspo_low, bounds.gspo_high) if bounds.kind == "gspo" else (bounds.clip_low, bounds.clip_high)
    up_K = (term.advantages_K > 0) & (rho_K > high)
    down_K = (term.advantages_K < 0) & ((rho_K < low) | (rho_K > bounds.dual_clip))
    if bounds.kind == "cispo":  # no token loses its gradient; the cap takes from its weight
        up_K, down_K = rho_K > bounds.cispo_high, torch.zeros_like(down_K)
    return {
        f"tokens/{term.name}": int(term.mask_K.sum()),
        f"clipped/{term.name}": int((live_K & (up_K | down_K)).sum()),
    }
