"""Policy loss: clipped surrogates over terms, plus a k2 penalty to the base (formulas in docs/paper_index.md).

Shapes: K response tokens of a micro-batch. mu is the policy that sampled, pi the policy being trained, both at the
sampling temperature of the token. With one step per batch, the only correction is rho = pi / mu. With several steps,
the ratio of the step itself, pi / old, is clipped, and old / mu is a capped weight (decoupled form).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch

from openclaw_rl.settings.load import TrainConfig

# Keeps exp() from overflowing; the band on the ratio already masks such tokens.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """Surrogate kind, clip(rho, low, high), dual clip c, and the band for token ratios.

    `kind`: clip (PPO, per token), cispo (arXiv:2506.13585: the ratio is a capped weight on log pi), gspo
    (arXiv:2507.18071: one ratio per sequence, the geometric mean of its token ratios). The sequence masks
    (`opsm_delta`, the geometric band) mask nothing by default.
    """

    clip_low: float
    clip_high: float
    dual_clip: float
    token_ratio_min: float
    token_ratio_max: float
    kind: Literal["clip", "cispo", "gspo"] = "clip"
    cispo_high: float = 5.0
    gspo_low: float = 1 - 3e-4
    gspo_high: float = 1 + 4e-4
    weight_cap: float = 2.0  # cap of old / mu with several steps per batch
    opsm_delta: float = math.inf  # nats per token
    geometric_low: float = 0.0
    geometric_high: float = math.inf

    @property
    def clip_range(self) -> tuple[float, float]:
        """Ratios between which the surrogate is not clipped."""
        return (
            (self.gspo_low, self.gspo_high)
            if self.kind == "gspo"
            else (self.clip_low, self.clip_high)
        )

    @property
    def needs_rows(self) -> bool:
        """Whether the loss must know which sequence each token belongs to."""
        masks = (
            self.opsm_delta < math.inf or self.geometric_low > 0 or self.geometric_high < math.inf
        )
        return masks or self.kind == "gspo"


@dataclass(frozen=True, slots=True, kw_only=True)
class TermSlice:
    """K tokens of a loss term; the denominator is that of the whole batch.

    A slice of a `DistillTerm` has a divergence per token, and advantages of zero.
    """

    name: str
    weight: float
    advantages_K: torch.Tensor
    mask_K: torch.Tensor  # bool
    denominator: float
    divergence_K: torch.Tensor | None = None
    ratio_cap: float = math.inf  # cap of the ratio that weights a divergence


@dataclass(frozen=True, slots=True, kw_only=True)
class LossResult:
    """Loss of a micro-batch, its unweighted parts, and token counts by name (input of `step_metrics.token_shares`)."""

    total: torch.Tensor
    parts: Mapping[str, float]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicyCorrection:
    """Off-policy corrections and masks per token: [K] each, all but `ratio_K` without gradient."""

    # Log-probability in the denominator of the ratio: mu, or old when decoupled.
    log_denominator_K: torch.Tensor
    ratio_K: torch.Tensor  # pi / exp(log_denominator_K)
    weight_K: torch.Tensor  # weight of the surrogate: 1, or old / mu capped when decoupled
    capped_K: torch.Tensor  # bool: the cap reduced the weight
    in_band_K: torch.Tensor  # bool: token ratio is in the band
    in_geometric_band_K: torch.Tensor  # bool: sequence passes the geometric mask
    opsm_masked_K: torch.Tensor  # bool: OPSM masks negative advantages of the sequence


def importance_ratio(logp_K: torch.Tensor, mu_K: torch.Tensor) -> torch.Tensor:
    """Return rho = pi / mu."""
    return torch.exp(torch.clamp(logp_K - mu_K, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def sequence_mean(
    values_K: torch.Tensor, mask_K: torch.Tensor, rows_K: torch.Tensor
) -> torch.Tensor:
    """Return [K]: for each token the mean of its row's values over `mask_K` (0 if the row has no such token)."""
    rows = int(rows_K.max()) + 1 if len(rows_K) else 0
    weight_K = mask_K.to(values_K.dtype)
    sums = torch.zeros(rows, dtype=values_K.dtype, device=values_K.device).index_add_(
        0, rows_K, values_K * weight_K
    )
    counts = torch.zeros_like(sums).index_add_(0, rows_K, weight_K)
    return (sums / counts.clamp(min=1))[rows_K]


def sequence_ratio(logp_K: torch.Tensor, from_K: torch.Tensor, mask_K: torch.Tensor, rows_K: torch.Tensor
                   ) -> torch.Tensor:  # fmt: skip
    """Return [K]: the sequence ratio exp(mean log rho) with per-token gradient (arXiv:2507.18071, GSPO-token).

    The mean is over the tokens of `mask_K`; `rows_K` is the row of each token.
    """
    log_rho_K = torch.clamp(logp_K.detach() - from_K, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.exp(sequence_mean(log_rho_K, mask_K, rows_K)) * torch.exp(logp_K - logp_K.detach())


def off_policy_correction(
    logp_K: torch.Tensor,
    mu_K: torch.Tensor,
    old_K: torch.Tensor | None,
    rows_K: torch.Tensor | None,
    anywhere_K: torch.Tensor,
    config: LossConfig,
) -> OffPolicyCorrection:
    """Return the corrections: a band for one step per batch, a weight for several, and the sequence masks.

    drift = mean over the tokens of a sequence of log pi - log mu. Geometric mask: exp(drift) must be in its band. OPSM
    (arXiv:2512.02556, eq. 9): if -drift is above delta, tokens with negative advantages are masked. Band: the
    engine-trainer ratio (IcePop; arXiv:2512.16144, eq. 1).
    """
    rho_K = importance_ratio(logp_K, mu_K)
    everywhere_K = torch.ones_like(anywhere_K)
    weight_K = torch.ones_like(mu_K)
    capped_K = ~everywhere_K
    if old_K is None:
        band_K = (rho_K.detach() >= config.token_ratio_min) & (
            rho_K.detach() <= config.token_ratio_max
        )
    else:
        stale_K = importance_ratio(old_K, mu_K)
        band_K = everywhere_K
        weight_K = stale_K.clamp(max=config.weight_cap)
        capped_K = stale_K > config.weight_cap
    geometric_K = everywhere_K
    opsm_K = ~everywhere_K
    if config.needs_rows:
        assert rows_K is not None, "sequence masks and sequence ratios need rows_K"
        drift_K = sequence_mean(logp_K.detach() - mu_K, anywhere_K, rows_K)
        sequence_ratio_K = torch.exp(torch.clamp(drift_K, -MAX_LOG_RATIO, MAX_LOG_RATIO))
        geometric_K = (sequence_ratio_K >= config.geometric_low) & (
            sequence_ratio_K <= config.geometric_high
        )
        opsm_K = -drift_K > config.opsm_delta
    return OffPolicyCorrection(
        log_denominator_K=mu_K if old_K is None else old_K,
        ratio_K=rho_K if old_K is None else importance_ratio(logp_K, old_K),
        weight_K=weight_K,
        capped_K=capped_K,
        in_band_K=band_K,
        in_geometric_band_K=geometric_K,
        opsm_masked_K=opsm_K,
    )


def surrogate_loss(
    rho_K: torch.Tensor, logp_K: torch.Tensor, advantages_K: torch.Tensor, config: LossConfig
) -> torch.Tensor:
    """Return [K]: -min(rho A, clip(rho) A), for A < 0 at most -c A; for CISPO -sg(min(rho, cap)) A log pi.

    The upper clip is wider (arXiv:2503.14476); the dual clip is from arXiv:1912.09729.
    """
    if config.kind == "cispo":
        return -rho_K.detach().clamp(max=config.cispo_high) * advantages_K * logp_K
    low, high = config.clip_range
    loss = -torch.minimum(rho_K * advantages_K, torch.clamp(rho_K, low, high) * advantages_K)
    return torch.where(
        advantages_K < 0, torch.minimum(loss, -config.dual_clip * advantages_K), loss
    )


def k2_penalty(logp_K: torch.Tensor, base_K: torch.Tensor, rho_K: torch.Tensor) -> torch.Tensor:
    """Return [K] sg(rho) (log pi - log base)^2 / 2, which has the gradient of KL(pi || base) (arXiv:2510.01555).

    k1 as a loss has an expected gradient of zero, so it only adds noise; k3 is biased.
    """
    return rho_K.detach() * 0.5 * (logp_K - base_K).square()


def micro_batch_loss(
    *,
    logp_K: torch.Tensor,
    mu_K: torch.Tensor,
    base_K: torch.Tensor,
    terms: Sequence[TermSlice],
    kl_coef: float,
    kl_denominator: float,
    config: LossConfig,
    old_K: torch.Tensor | None = None,
    rows_K: torch.Tensor | None = None,
    sampled_K: torch.Tensor | None = None,
) -> LossResult:
    """Return the sum over terms of w * sum(surrogate) / denominator, plus kl_coef * sum(k2) / kl_denominator.

    A token counts if its term's mask, the ratio band and the sequence masks all allow it. Masked tokens stay in the
    denominator, so the others do not get heavier. The KL penalty covers the tokens of all terms, also those that OPSM
    masks, because it pulls back. `old_K`: log-probabilities before the first of several steps (decoupled,
    arXiv:2110.00641); old / mu is then a weight capped at `weight_cap`, without the band. `rows_K`: row of each token.
    `sampled_K`: bool, tokens that a policy sampled (None: all); the KL penalty is an expectation over these alone.
    """
    nowhere_K = torch.zeros_like(mu_K, dtype=torch.bool)
    anywhere_K = reduce(torch.logical_or, (term.mask_K for term in terms), nowhere_K)
    seen = off_policy_correction(logp_K, mu_K, old_K, rows_K, anywhere_K, config)
    unmasked_K = seen.in_band_K & seen.in_geometric_band_K
    total = torch.zeros((), dtype=logp_K.dtype, device=logp_K.device)
    parts: dict[str, torch.Tensor] = {}
    counts = _mask_counts(anywhere_K, terms, seen)
    moving_K = nowhere_K
    for term in terms:
        live_K = term.mask_K & unmasked_K & ~_opsm_mask(term, seen)
        moving_K = moving_K | (
            live_K if term.divergence_K is not None else live_K & (term.advantages_K != 0)
        )
        step_K = seen.ratio_K
        # A divergence belongs to one position.
        if config.kind == "gspo" and term.divergence_K is None:
            assert rows_K is not None, "off_policy_correction() requires rows_K"
            step_K = sequence_ratio(
                logp_K, seen.log_denominator_K, term.mask_K & seen.in_band_K, rows_K
            )
        if term.divergence_K is None:
            losses_K = seen.weight_K * surrogate_loss(step_K, logp_K, term.advantages_K, config)
        else:
            losses_K = seen.weight_K * step_K.detach().clamp(max=term.ratio_cap) * term.divergence_K
        parts[term.name] = _masked_sum(losses_K, live_K) / term.denominator
        total = total + term.weight * parts[term.name]
        counts |= _clip_counts(term, step_K.detach(), live_K, seen.capped_K, config)
    # The decoupled form has the same two factors as above, so that the weight of a token with a large gap stays capped.
    penalty_K = k2_penalty(logp_K, base_K, seen.weight_K * seen.ratio_K)
    penalised_K = (
        anywhere_K & unmasked_K if sampled_K is None else anywhere_K & unmasked_K & sampled_K
    )
    parts["kl"] = _masked_sum(penalty_K, penalised_K) / kl_denominator
    # Tokens with a gradient from a term; KL alone does not justify a step.
    counts["live"] = moving_K.sum()
    values = torch.stack(
        [number.detach().double() for number in (*parts.values(), *counts.values())]
    ).tolist()
    return LossResult(
        total=total + kl_coef * parts["kl"],
        parts=dict(zip(parts, values, strict=False)),
        counts=dict(zip(counts, map(int, values[len(parts) :]), strict=True)),
    )


def _masked_sum(values_K: torch.Tensor, mask_K: torch.Tensor) -> torch.Tensor:
    return torch.where(mask_K, values_K, torch.zeros_like(values_K)).sum()


def _opsm_mask(term: TermSlice, seen: OffPolicyCorrection) -> torch.Tensor:
    """Return [K] bool: OPSM masks the token."""
    return seen.opsm_masked_K & (term.advantages_K < 0)


def _mask_counts(
    anywhere_K: torch.Tensor, terms: Sequence[TermSlice], seen: OffPolicyCorrection
) -> dict[str, torch.Tensor]:
    """Return the number of tokens in any term, and how many of them each mask removes (OPSM: from any term)."""
    masked = (term.mask_K & _opsm_mask(term, seen) for term in terms)
    return {
        "tokens": anywhere_K.sum(),
        "gap": (anywhere_K & ~seen.in_band_K).sum(),
        "geometric": (anywhere_K & ~seen.in_geometric_band_K).sum(),
        "opsm": reduce(torch.logical_or, masked, torch.zeros_like(anywhere_K)).sum(),
    }


def _clip_counts(
    term: TermSlice,
    rho_K: torch.Tensor,
    live_K: torch.Tensor,
    capped_K: torch.Tensor,
    config: LossConfig,
) -> dict[str, torch.Tensor]:
    """Return counts of tokens in the term, tokens without gradient due to the clip, and tokens with a capped weight."""
    low, high = config.clip_range
    up_K = (term.advantages_K > 0) & (rho_K > high)
    down_K = (term.advantages_K < 0) & ((rho_K < low) | (rho_K > config.dual_clip))
    clipped_K = up_K | down_K
    cap = config.cispo_high if term.divergence_K is None else term.ratio_cap
    # Tokens keep their gradient, some with less weight.
    if config.kind == "cispo" or term.divergence_K is not None:
        clipped_K = torch.zeros_like(up_K)
        capped_K = capped_K | (rho_K > cap)
    return {
        f"tokens/{term.name}": term.mask_K.sum(),
        f"clipped/{term.name}": (live_K & clipped_K).sum(),
        f"capped/{term.name}": (live_K & capped_K).sum(),
    }


def make_loss_config(train: TrainConfig) -> LossConfig:
    """Return the loss settings; masks that are not selected keep bounds that mask nothing."""
    masks = {"none": (), "opsm": ("opsm_delta",), "geometric": ("geometric_low", "geometric_high")}
    bounds = ("clip_low", "clip_high", "dual_clip", "token_ratio_min", "token_ratio_max")
    names = {*bounds, *masks[train.loss.sequence_mask]}
    return LossConfig(kind=train.loss.surrogate, **train.loss.model_dump(include=names))
