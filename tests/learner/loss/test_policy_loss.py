"""The loss against the independent statement of decision 8: values, and gradients by every token."""

from __future__ import annotations

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
    importance_ratio,
    k2_penalty,
    micro_batch_loss,
)

LIMITS = {
    "clip_low": 0.8,
    "clip_high": 1.28,
    "dual_clip": 3.0,
    "token_ratio_min": 0.5,
    "token_ratio_max": 5.0,
}
SHORT = {"low": 0.8, "high": 1.28, "dual": 3.0, "gap_low": 0.5, "gap_high": 5.0}
WEIGHTS = {"binary": 0.7, "opd": 1.9}
KL, AVERAGE = 0.3, 7.5


def random_batch(seed: int) -> list[dict[str, Any]]:
    """Uneven lengths and masks, samples in none, one or both terms, ratios from 1e-30 to 1e30."""
    rng = np.random.default_rng(seed)
    batch = []
    for _ in range(int(rng.integers(1, 7))):
        r = int(rng.integers(1, 15))
        mu = -rng.exponential(2.0, r)
        spread = rng.choice([0.05, 0.5, 2.0, 30.0])
        mask = rng.random(r) < 0.8
        mask[rng.integers(r)] = True
        advantages = {
            "binary": None if rng.random() < 0.4 else [float(rng.normal())] * r,
            "opd": None if rng.random() < 0.4 else list(rng.uniform(-1, 1, r)),
        }
        batch.append(
            {
                "logp": mu + rng.normal(0, spread, r).clip(-19, 19),
                "mu": mu,
                "base": mu + rng.normal(0, 1, r),
                "mask": mask,
                "advantages": advantages,
            }
        )
    return batch


def ours(
    batch: list[dict[str, Any]], members: list[int], logp_K: torch.Tensor, names: tuple[str, ...]
) -> LossResult:
    """The loss of some of the batch's samples, with the denominators of the whole batch."""

    def cat(key: str) -> torch.Tensor:
        return torch.cat([torch.as_tensor(batch[i][key]) for i in members])

    def given_(name: str, i: int) -> list[float] | None:
        advantages: list[float] | None = batch[i]["advantages"][name]
        return advantages

    counts = {name: sum(s["advantages"][name] is not None for s in batch) for name in names}
    terms = [
        TermSlice(
            name=name,
            weight=WEIGHTS[name],
            advantages_K=torch.cat(
                [
                    torch.tensor(
                        given_(name, i) or [0.0] * len(batch[i]["mu"]), dtype=torch.float64
                    )
                    for i in members
                ]
            ),
            mask_K=torch.cat(
                [torch.as_tensor(batch[i]["mask"]) & (given_(name, i) is not None) for i in members]
            ),
            denominator=counts[name] * AVERAGE,
        )
        for name in names
        if counts[name]
    ]
    in_any = sum(any(a is not None for a in s["advantages"].values()) for s in batch)
    return micro_batch_loss(
        logp_K=logp_K,
        mu_K=cat("mu"),
        base_K=cat("base"),
        terms=terms,
        kl_coef=KL,
        kl_denominator=max(in_any, 1) * AVERAGE,
        config=LossConfig(**LIMITS),
    )


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_value_and_gradient_match_the_reference(reference: ModuleType, seed: int) -> None:
    batch = random_batch(seed)
    logp_K = torch.tensor(np.concatenate([s["logp"] for s in batch]), requires_grad=True)
    loss = ours(batch, list(range(len(batch))), logp_K, ("binary", "opd"))
    value, slopes = reference.total_loss(
        batch, weights=WEIGHTS, kl_coef=KL, average_length=AVERAGE, bounds=SHORT
    )
    assert loss.total.item() == pytest.approx(value, rel=1e-9, abs=1e-12)
    if not loss.total.requires_grad:
        assert not np.any(np.concatenate(slopes))
        return
    loss.total.backward()
    np.testing.assert_allclose(logp_K.grad, np.concatenate(slopes), rtol=1e-9, atol=1e-12)


def single_term_loss(
    logp_K: torch.Tensor,
    mu_K: torch.Tensor,
    advantages_K: torch.Tensor,
    *,
    weight: float = 1.0,
    denominator: float = 1.0,
    mask_K: torch.Tensor | None = None,
    **changed: Any,
) -> LossResult:
    mask_K = torch.ones(len(mu_K), dtype=torch.bool) if mask_K is None else mask_K
    term = TermSlice(
        name="x", weight=weight, advantages_K=advantages_K, mask_K=mask_K, denominator=denominator
    )
    plain = {"base_K": mu_K, "kl_coef": 0.0, "kl_denominator": 1.0, "config": LossConfig(**LIMITS)}
    return micro_batch_loss(logp_K=logp_K, mu_K=mu_K, terms=[term], **(plain | changed))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_gradient_is_the_slope_of_the_value(seed: int) -> None:
    """Finite differences, away from the corners of the clip; rho stands still in the KL term, so it is left out."""
    rng = np.random.default_rng(seed)
    mu = torch.tensor(-rng.exponential(2.0, 12))
    log_rho = torch.tensor(rng.choice([-0.9, -0.5, -0.1, 0.1, 0.3, 0.9, 1.3, 2.0], 12))
    advantages = torch.tensor(rng.normal(0, 1, 12))

    def value(logp_K: torch.Tensor) -> torch.Tensor:
        return single_term_loss(logp_K, mu, advantages, denominator=3.0).total

    assert torch.autograd.gradcheck(value, ((mu + log_rho).requires_grad_(),), eps=1e-6, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_micro_batches_add_up(seed: int) -> None:
    batch = random_batch(seed)
    whole = ours(
        batch,
        list(range(len(batch))),
        torch.tensor(np.concatenate([s["logp"] for s in batch])),
        ("binary", "opd"),
    )
    parts = [
        ours(batch, [i], torch.tensor(batch[i]["logp"]), ("binary", "opd"))
        for i in range(len(batch))
    ]
    assert sum(p.total.item() for p in parts) == pytest.approx(
        whole.total.item(), rel=1e-9, abs=1e-12
    )
    for name, count in whole.counts.items():
        assert sum(p.counts[name] for p in parts) == count


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_terms_are_independent(seed: int) -> None:
    """Its value with and without the other term beside it, in the same batch."""
    batch = random_batch(seed)
    logp_K = torch.tensor(np.concatenate([s["logp"] for s in batch]))
    both = ours(batch, list(range(len(batch))), logp_K, ("binary", "opd")).parts
    for name in ("binary", "opd"):
        alone = ours(batch, list(range(len(batch))), logp_K, (name,)).parts
        assert alone.get(name) == both.get(name)


def test_masked_tokens_have_no_gradient() -> None:
    logp_K = torch.tensor([-1.0, -1e4, -1e-30, -2.0], dtype=torch.float64, requires_grad=True)
    mu_K = torch.tensor([-1.0, -1e-9, -1e4, -2.0], dtype=torch.float64)
    mask_K = torch.tensor([True, True, True, False])
    loss = single_term_loss(logp_K, mu_K, torch.full_like(mu_K, -1.0), mask_K=mask_K, kl_coef=1.0)
    loss.total.backward()
    assert logp_K.grad is not None
    assert logp_K.grad.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert loss.counts["gap"] == 2


def test_masking_a_token_does_not_change_the_weight_of_others() -> None:
    def gradient(mu_1: float) -> float:
        logp_K = torch.tensor([-1.0, -1.0], dtype=torch.float64, requires_grad=True)
        mu_K = torch.tensor([-1.0, mu_1], dtype=torch.float64)
        single_term_loss(logp_K, mu_K, torch.ones(2), denominator=2.0).total.backward()
        assert logp_K.grad is not None
        return float(logp_K.grad[0])

    assert gradient(-1.0) == gradient(-9.0) == -0.5


def test_the_gradient_of_k2_is_that_of_the_kl() -> None:
    """Exact expectation over a stale sampler: sum over y of mu(y) grad k2 is the gradient of KL(pi || base)."""
    generator = torch.Generator().manual_seed(0)
    theta, mu, base = (torch.randn(5, generator=generator, dtype=torch.float64) for _ in range(3))
    theta.requires_grad_()
    mu, base = torch.log_softmax(mu, 0), torch.log_softmax(base, 0)
    logp = torch.log_softmax(theta, 0)
    (mu.exp() * k2_penalty(logp, base, importance_ratio(logp, mu))).sum().backward()
    assert theta.grad is not None
    found, theta.grad = theta.grad.clone(), None
    logp = torch.log_softmax(theta, 0)
    (logp.exp() * (logp - base)).sum().backward()
    torch.testing.assert_close(found, theta.grad, rtol=1e-9, atol=1e-12)


def test_an_outlier_of_the_engine_does_not_dominate_the_kl() -> None:
    """Decoupled: no gap band, so the weight of the KL term is capped as that of the surrogate is."""
    logp_K = torch.tensor([-1.0, -1.0], dtype=torch.float64, requires_grad=True)
    mu_K, base_K = (
        torch.tensor([-1.0, -11.0], dtype=torch.float64),
        torch.full((2,), -2.0, dtype=torch.float64),
    )
    old_K = logp_K.detach().clone()
    loss = single_term_loss(
        logp_K, mu_K, torch.ones_like(mu_K), weight=0.0, base_K=base_K, kl_coef=1.0, old_K=old_K
    )
    loss.total.backward()
    assert logp_K.grad is not None
    assert logp_K.grad.tolist() == [1.0, 2.0], "at most weight_cap times what it would be"
