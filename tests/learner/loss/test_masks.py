"""Masks of whole sequences, in every form of the loss, against the independent statement; and what is counted."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.learner.loss.policy_loss import (
    LossConfig,
    LossResult,
    TermSlice,
    make_loss_config,
    micro_batch_loss,
)
from openclaw_rl.learner.step_metrics import token_shares
from openclaw_rl.settings.load import train_settings

WEIGHTS = {"binary": 0.7, "opd": 1.9}
KL, AVERAGE = 0.3, 7.5
LIMITS = {
    "clip_low": 0.8,
    "clip_high": 1.28,
    "dual_clip": 3.0,
    "token_ratio_min": 0.5,
    "token_ratio_max": 5.0,
}
BY_KIND = {"clip": (0.8, 1.28), "cispo": (0.0, 5.0), "gspo": (1 - 3e-4, 1 + 4e-4)}
MASKS: dict[str, dict[str, float]] = {
    "none": {},
    "opsm": {"opsm_delta": 0.02},
    "geometric": {"geometric_low": 0.97, "geometric_high": 1.05},
}


def random_batch(seed: int, *, decoupled: bool) -> list[dict[str, Any]]:
    """One to six samples, in none, one or both terms; some nearly on policy, some far off."""
    rng = np.random.default_rng(seed)
    batch = []
    for _ in range(int(rng.integers(1, 7))):
        r = int(rng.integers(1, 12))
        mu = -rng.exponential(2.0, r)
        mask = rng.random(r) < 0.8
        old = mu + rng.normal(rng.choice([-0.03, 0.0, 0.03]), rng.choice([0.01, 0.3, 1.0]), r)
        item: dict[str, Any] = {
            "mu": mu,
            "logp": old + rng.normal(0, rng.choice([0.01, 0.3]), r),
            "base": mu + rng.normal(0, 1, r),
            "mask": mask,
            "advantages": {
                "binary": None if rng.random() < 0.3 else [float(rng.normal())] * r,
                "opd": None if rng.random() < 0.3 else list(rng.uniform(-1, 1, r)),
            },
        }
        batch.append(item | ({"old": old} if decoupled else {}))
    return batch


def ours(
    batch: list[dict[str, Any]], indices: list[int], logp_K: torch.Tensor, bounds: LossConfig
) -> LossResult:
    """The loss of some of the samples, with the denominators of the whole batch."""

    def cat(key: str) -> torch.Tensor:
        return torch.cat([torch.as_tensor(batch[i][key]) for i in indices])

    def slice_of(name: str, count: int) -> TermSlice:
        values = [batch[i]["advantages"][name] for i in indices]
        sizes = [len(batch[i]["mu"]) for i in indices]
        return TermSlice(
            name=name,
            weight=WEIGHTS[name],
            advantages_K=torch.tensor(
                np.concatenate([v or [0.0] * n for v, n in zip(values, sizes, strict=True)])
            ),
            mask_K=torch.cat(
                [
                    torch.as_tensor(batch[i]["mask"]) & (v is not None)
                    for i, v in zip(indices, values, strict=True)
                ]
            ),
            denominator=count * AVERAGE,
        )

    counts = {name: sum(s["advantages"][name] is not None for s in batch) for name in WEIGHTS}
    members = sum(any(a is not None for a in s["advantages"].values()) for s in batch)
    return micro_batch_loss(
        logp_K=logp_K,
        mu_K=cat("mu"),
        base_K=cat("base"),
        terms=[slice_of(name, count) for name, count in counts.items() if count],
        kl_coef=KL,
        kl_denominator=max(members, 1) * AVERAGE,
        config=bounds,
        old_K=cat("old") if "old" in batch[0] else None,
        rows_K=torch.arange(len(indices)).repeat_interleave(
            torch.tensor([len(batch[i]["mu"]) for i in indices])
        ),
    )


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", BY_KIND)
@pytest.mark.parametrize("decoupled", [False, True], ids=["one-step", "decoupled"])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_value_gradient_and_counts_match_the_reference(
    reference: ModuleType, seed: int, kind: Any, mask: str, decoupled: bool
) -> None:
    batch = random_batch(seed, decoupled=decoupled)
    everything = list(range(len(batch)))
    logp_K = torch.tensor(np.concatenate([s["logp"] for s in batch]), requires_grad=True)
    loss = ours(batch, everything, logp_K, LossConfig(kind=kind, **LIMITS, **MASKS[mask]))
    low, high = BY_KIND[kind]
    band = tuple(MASKS[mask].values()) if mask == "geometric" else None
    value, slopes, taken = reference.corrected_loss(
        batch, weights=WEIGHTS, kl_coef=KL, average_length=AVERAGE, kind=kind, low=low, high=high, dual=3.0,
        gap_low=0.5, gap_high=5.0, cap=2.0, opsm=MASKS[mask].get("opsm_delta"), band=band,
    )  # fmt: skip
    assert loss.total.item() == pytest.approx(value, rel=1e-9, abs=1e-12)
    assert {name: loss.counts[name] for name in taken} == taken
    if loss.total.requires_grad:
        loss.total.backward()
        np.testing.assert_allclose(logp_K.grad, np.concatenate(slopes), rtol=1e-8, atol=1e-12)
    else:
        assert not np.any(np.concatenate(slopes))


@pytest.mark.parametrize("mask", MASKS)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_micro_batches_add_up(seed: int, mask: str) -> None:
    batch = random_batch(seed, decoupled=False)
    bounds = LossConfig(**LIMITS, **MASKS[mask])
    whole = ours(
        batch,
        list(range(len(batch))),
        torch.tensor(np.concatenate([s["logp"] for s in batch])),
        bounds,
    )
    parts = [ours(batch, [i], torch.tensor(batch[i]["logp"]), bounds) for i in range(len(batch))]
    assert sum(p.total.item() for p in parts) == pytest.approx(
        whole.total.item(), rel=1e-9, abs=1e-12
    )
    for name, count in whole.counts.items():
        assert sum(p.counts[name] for p in parts) == count


def gradient(
    bounds: LossConfig, gaps: list[float], advantage: float, old: list[float] | None = None
) -> LossResult:
    """One reply of which each token's log-ratio is given; `loss.total` has been taken back to the tokens."""
    mu_K = torch.full((len(gaps),), -2.0, dtype=torch.float64)
    logp_K = (mu_K + torch.tensor(gaps, dtype=torch.float64)).requires_grad_()
    term = TermSlice(
        name="x",
        weight=1.0,
        advantages_K=torch.full_like(mu_K, advantage),
        mask_K=torch.ones(len(gaps), dtype=torch.bool),
        denominator=1.0,
    )
    loss = micro_batch_loss(
        logp_K=logp_K, mu_K=mu_K, base_K=mu_K, terms=[term], kl_coef=0.0, kl_denominator=1.0, config=bounds,
        old_K=None if old is None else torch.tensor(old, dtype=torch.float64),
        rows_K=torch.zeros(len(gaps), dtype=torch.long),
    )  # fmt: skip
    loss.total.backward()
    assert logp_K.grad is not None
    return LossResult(total=logp_K.grad, parts=loss.parts, counts=loss.counts)


def test_opsm_masks_only_bad_replies_that_the_policy_left() -> None:
    bounds = LossConfig(**LIMITS, opsm_delta=0.05)
    left, near, further = [-0.1, -0.1, 0.0], [-0.1, 0.1, 0.0], [0.1, 0.1, 0.1]
    assert not gradient(bounds, left, -1.0).total.any()
    assert gradient(bounds, left, -1.0).counts["opsm"] == 3
    for gaps, advantage in ((left, 1.0), (near, -1.0), (further, -1.0)):
        result = gradient(bounds, gaps, advantage)
        assert result.total.all(), "every token has its gradient"
        assert result.counts["opsm"] == 0


def test_the_geometric_mask_drops_drift_in_both_directions() -> None:
    bounds = LossConfig(**LIMITS, geometric_low=0.99, geometric_high=1.01)
    for gaps in ([-0.1, -0.1], [0.1, 0.0]):
        for advantage in (1.0, -1.0):
            result = gradient(bounds, gaps, advantage)
            assert not result.total.any()
            assert result.counts["geometric"] == 2
    assert gradient(bounds, [0.2, -0.2], 1.0).total.all(), "the mean stands still"


def test_capped_tokens_are_counted() -> None:
    cispo = gradient(
        LossConfig(**(LIMITS | {"token_ratio_max": 100.0}), kind="cispo"), [2.0, 0.0], 1.0
    ).counts
    assert (cispo["capped/x"], cispo["clipped/x"]) == (1, 0)
    decoupled = gradient(LossConfig(**LIMITS), [1.0, 0.1, 0.5], 1.0, old=[-1.0, -1.9, -2.0]).counts
    assert (decoupled["capped/x"], decoupled["clipped/x"], decoupled["gap"]) == (1, 1, 0)
    shares = token_shares(decoupled, ["x", "silent"])
    assert shares["capped/x"] == shares["clipped/x"] == pytest.approx(1 / 3)
    assert (
        shares["capped/silent"]
        == shares["masked/gap"]
        == shares["masked/opsm"]
        == shares["masked/geometric"]
        == 0
    )


def test_the_rows_of_tokens_are_required() -> None:
    empty = torch.zeros(0)
    for bounds in (LossConfig(**LIMITS, opsm_delta=0.1), LossConfig(**LIMITS, kind="gspo")):
        with pytest.raises(AssertionError, match="need rows_K"):
            micro_batch_loss(
                logp_K=empty,
                mu_K=empty,
                base_K=empty,
                terms=[],
                kl_coef=0.0,
                kl_denominator=1.0,
                config=bounds,
            )


def test_only_the_chosen_mask_applies() -> None:
    settings_ = {"opsm_delta": 0.3, "geometric_low": 0.9, "geometric_high": 1.2}
    none, opsm, geometric = (
        make_loss_config(train_settings({"loss.sequence_mask": mask, **settings_}))  # type: ignore[arg-type]
        for mask in ("none", "opsm", "geometric")
    )
    assert not none.needs_rows
    assert (opsm.opsm_delta, opsm.geometric_low, opsm.geometric_high) == (0.3, 0.0, math.inf)
    assert (geometric.opsm_delta, geometric.geometric_low, geometric.geometric_high) == (
        math.inf,
        0.9,
        1.2,
    )
