"""The loss: clipped surrogates over terms, and k2 to the base (docs/paper_index.md states each formula).

Legend: K response tokens of a micro-batch. mu: sampled log-probability, pi: of the policy being trained, both at the
temperature under which the token was sampled. With one step a batch there is one correction: rho = pi / mu, and no
second one. With several, the step's own ratio pi / old is clipped, and old / mu is a capped weight (decoupled).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from openclaw_rl.settings.load import TrainConfig

MAX_LOG_RATIO = 20.0  # beyond it exp() overflows; the gap mask has long taken such tokens out


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Which surrogate, clip(rho, low, high), dual clip c, and the band [gap_low, gap_high] that tokens must lie in.

    `kind`: clip (PPO's, token by token), cispo (arXiv:2506.13585: the ratio is a capped weight on log pi), gspo
    (arXiv:2507.18071: the ratio is the sequence's, the geometric mean of its tokens'). The bounds of whole sequences
    (`opsm_delta`, the geometric band) are those in force: by default they hold nothing back.
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
    opsm_delta: float = math.inf  # nats a token
    geometric_low: float = 0.0
    geometric_high: float = math.inf

    @property
    def by_sequence(self) -> bool:
        """Whether it matters whose token each is."""
        masks = self.opsm_delta < math.inf or self.geometric_low > 0 or self.geometric_high < math.inf
        return masks or self.kind == "gspo"


@dataclass(frozen=True, slots=True, kw_only=True)
class TermSlice:
    """The part of a term that falls on these K tokens; the denominator is that of the whole batch.

    A `Target`'s part has a loss of its own for each token, and no advantages (zeros).
    """

    name: str
    weight: float
    advantages_K: torch.Tensor
    mask_K: torch.Tensor  # bool
    denominator: float
    divergence_K: torch.Tensor | None = None
    cap: float = math.inf  # of the ratio by which a divergence is weighed


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The loss of a micro-batch, its parts (unweighted), and counts of tokens by name (`measure.shares` reads them)."""

    total: torch.Tensor
    parts: Mapping[str, float]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What is done about pi not being mu: [K] each, all but `step_K` without gradient."""

    from_K: torch.Tensor  # log-probability that the step's own ratio is against: mu, or old when decoupled
    step_K: torch.Tensor  # pi / exp(from_K)
    weight_K: torch.Tensor  # of the surrogate: 1, or old / mu capped when decoupled
    capped_K: torch.Tensor  # bool: the cap took from the weight
    band_K: torch.Tensor  # bool: the token may count (gap mask)
    steady_K: torch.Tensor  # bool: its sequence may count (geometric mask)
    behind_K: torch.Tensor  # bool: its sequence may not be pushed down (OPSM)


def ratio(logp_K: torch.Tensor, mu_K: torch.Tensor) -> torch.Tensor:
    """rho = pi / mu."""
    return torch.exp(torch.clamp(logp_K - mu_K, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def in_band(rho_K: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    """[K] bool, detached: engine and trainer agree well enough on this token (IcePop; arXiv:2512.16144, eq. 1)."""
    rho = rho_K.detach()
    return (rho >= bounds.gap_low) & (rho <= bounds.gap_high)


def sequence_mean(values_K: torch.Tensor, mask_K: torch.Tensor, rows_K: torch.Tensor) -> torch.Tensor:
    """[K] at each token the mean of its row's values over `mask_K` (0 where the row has none)."""
    rows, weight_K = int(rows_K.max()) + 1 if len(rows_K) else 0, mask_K.to(values_K.dtype)
    sums = torch.zeros(rows, dtype=values_K.dtype, device=values_K.device).index_add_(0, rows_K, values_K * weight_K)
    counts = torch.zeros_like(sums).index_add_(0, rows_K, weight_K)
    return (sums / counts.clamp(min=1))[rows_K]


def sequence_ratio(logp_K: torch.Tensor, from_K: torch.Tensor, mask_K: torch.Tensor, rows_K: torch.Tensor
                   ) -> torch.Tensor:  # fmt: skip
    """[K] each token's sequence ratio exp(mean log rho), with its own token's gradient (arXiv:2507.18071, GSPO-token).

    Over the tokens of `mask_K`; `rows_K` says whose token each is.
    """
    log_rho_K = torch.clamp(logp_K.detach() - from_K, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.exp(sequence_mean(log_rho_K, mask_K, rows_K)) * torch.exp(logp_K - logp_K.detach())


def corrections(
    logp_K: torch.Tensor,
    mu_K: torch.Tensor,
    old_K: torch.Tensor | None,
    rows_K: torch.Tensor | None,
    anywhere_K: torch.Tensor,
    bounds: Bounds,
) -> Correction:
    """One correction for one step a batch (the band), another for several (the weight), and the masks of sequences.

    drift = mean over the sequence's tokens of log pi - log mu. Geometric: exp(drift) must lie in its band. OPSM
    (arXiv:2512.02556, eq. 9): where -drift is above delta, nothing is pushed down any further.
    """
    rho_K, everywhere_K = ratio(logp_K, mu_K), torch.ones_like(anywhere_K)
    weight_K, capped_K, band_K = torch.ones_like(mu_K), ~everywhere_K, in_band(rho_K, bounds)
    if old_K is not None:
        stale_K = ratio(old_K, mu_K)
        weight_K, capped_K = stale_K.clamp(max=bounds.weight_cap), stale_K > bounds.weight_cap
        band_K = everywhere_K
    steady_K, behind_K = everywhere_K, ~everywhere_K
    if bounds.by_sequence:
        assert rows_K is not None, "masks and ratios of whole sequences need to know whose token each is"
        drift_K = sequence_mean(logp_K.detach() - mu_K, anywhere_K, rows_K)
        whole_K = torch.exp(torch.clamp(drift_K, -MAX_LOG_RATIO, MAX_LOG_RATIO))
        steady_K = (whole_K >= bounds.geometric_low) & (whole_K <= bounds.geometric_high)
        behind_K = -drift_K > bounds.opsm_delta
    return Correction(
        from_K=mu_K if old_K is None else old_K,
        step_K=rho_K if old_K is None else ratio(logp_K, old_K),
        weight_K=weight_K,
        capped_K=capped_K,
        band_K=band_K,
        steady_K=steady_K,
        behind_K=behind_K,
    )


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

    A token counts where its term's mask, the gap band and the masks of sequences all hold; masked tokens stay in the
    denominator, so that masking one does not make the others heavier. KL stands wherever any term does, OPSM or not: it
    pulls back. `old_K`: the policy before the first of several steps (decoupled, arXiv:2110.00641): then old / mu is a
    weight of at most `weight_cap` instead of a band. `rows_K`: whose token each is (gspo, masks of sequences).
    """
    anywhere_K = torch.zeros_like(mu_K, dtype=torch.bool)
    for term in terms:
        anywhere_K = anywhere_K | term.mask_K
    seen = corrections(logp_K, mu_K, old_K, rows_K, anywhere_K, bounds)
    total = torch.zeros((), dtype=logp_K.dtype, device=logp_K.device)
    parts: dict[str, float] = {}
    counts, moving_K = _masked(anywhere_K, terms, seen), torch.zeros_like(anywhere_K)
    for term in terms:
        live_K = term.mask_K & seen.band_K & seen.steady_K & ~_held(term, seen)
        moving_K = moving_K | (live_K if term.divergence_K is not None else live_K & (term.advantages_K != 0))
        step_K = seen.step_K
        if bounds.kind == "gspo" and term.divergence_K is None:  # a divergence is of one position
            assert rows_K is not None, "corrections() has seen to it"
            step_K = sequence_ratio(logp_K, seen.from_K, term.mask_K & seen.band_K, rows_K)
        if term.divergence_K is None:
            losses_K = seen.weight_K * surrogate(step_K, logp_K, term.advantages_K, bounds)
        else:
            losses_K = seen.weight_K * step_K.detach().clamp(max=term.cap) * term.divergence_K
        part = _masked_sum(losses_K, live_K) / term.denominator
        total = total + term.weight * part
        parts[term.name] = part.item()
        counts |= _clipped(term, step_K.detach(), live_K, seen.capped_K, bounds)
    # In the decoupled form the same two factors as above: a token that engine and trainer see differently stays capped.
    penalty_K = k2(logp_K, base_K, seen.weight_K * seen.step_K)
    penalty = _masked_sum(penalty_K, anywhere_K & seen.band_K & seen.steady_K) / kl_denominator
    counts |= {"live": int(moving_K.sum())}  # that ask for a change; KL alone is no reason for a step
    return Loss(total=total + kl_coef * penalty, parts=parts | {"kl": penalty.item()}, counts=counts)


def _masked_sum(values_K: torch.Tensor, mask_K: torch.Tensor) -> torch.Tensor:
    return torch.where(mask_K, values_K, torch.zeros_like(values_K)).sum()


def _held(term: TermSlice, seen: Correction) -> torch.Tensor:
    """[K] bool: OPSM holds the token back."""
    return seen.behind_K & (term.advantages_K < 0)


def _masked(anywhere_K: torch.Tensor, terms: Sequence[TermSlice], seen: Correction) -> dict[str, int]:
    """Tokens that stand in any term, and of those the ones that each mask takes out (OPSM: of any term)."""
    held_K = torch.zeros_like(anywhere_K)
    for term in terms:
        held_K = held_K | (term.mask_K & _held(term, seen))
    return {
        "tokens": int(anywhere_K.sum()),
        "gap": int((anywhere_K & ~seen.band_K).sum()),
        "geometric": int((anywhere_K & ~seen.steady_K).sum()),
        "opsm": int(held_K.sum()),
    }


def _clipped(
    term: TermSlice, rho_K: torch.Tensor, live_K: torch.Tensor, capped_K: torch.Tensor, bounds: Bounds
) -> dict[str, int]:
    """Tokens in the term; those whose gradient the clip takes away; those whose weight a cap makes smaller."""
    low, high = (bounds.gspo_low, bounds.gspo_high) if bounds.kind == "gspo" else (bounds.clip_low, bounds.clip_high)
    up_K = (term.advantages_K > 0) & (rho_K > high)
    down_K = (term.advantages_K < 0) & ((rho_K < low) | (rho_K > bounds.dual_clip))
    clipped_K = up_K | down_K
    cap = bounds.cispo_high if term.divergence_K is None else term.cap
    if bounds.kind == "cispo" or term.divergence_K is not None:  # no token loses its gradient, some have less weight
        clipped_K, capped_K = torch.zeros_like(up_K), capped_K | (rho_K > cap)
    return {
        f"tokens/{term.name}": int(term.mask_K.sum()),
        f"clipped/{term.name}": int((live_K & clipped_K).sum()),
        f"capped/{term.name}": int((live_K & capped_K).sum()),
    }


def bounds_of(train: TrainConfig) -> Bounds:
    """What is not chosen keeps a bound that holds nothing back."""
    masks: dict[str, dict[str, float]] = {
        "none": {},
        "opsm": {"opsm_delta": train.opsm_delta},
        "geometric": {"geometric_low": train.geometric_low, "geometric_high": train.geometric_high},
    }
    return Bounds(
        clip_low=train.clip_low,
        clip_high=train.clip_high,
        dual_clip=train.dual_clip,
        gap_low=train.gap_low,
        gap_high=train.gap_high,
        kind=train.loss,
        **masks[train.sequence_mask],
    )
