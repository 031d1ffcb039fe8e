"""The clipped loss is the field's, where the settings coincide: TRL's own code, and slime's public formula."""

from __future__ import annotations

import warnings
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.learner.loss.policy_loss import LossConfig, TermSlice, micro_batch_loss

LENGTH = 11  # TRL's max_completion_length: our n


@pytest.fixture(scope="module")
def grpo_loss() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl import GRPOTrainer

    return GRPOTrainer._compute_loss


def draw(seed: int) -> dict[str, torch.Tensor]:
    """B rows of T tokens, uneven masks; log-probabilities, the sampled ones, one advantage a row."""
    rng = np.random.default_rng(seed)
    b, t = int(rng.integers(1, 6)), int(rng.integers(1, LENGTH + 1))
    mask = np.arange(t) < rng.integers(1, t + 1, (b, 1))
    mu = -rng.exponential(2.0, (b, t))
    return {
        "mask": torch.from_numpy(mask),
        "mu": torch.from_numpy(mu),
        "logp": torch.from_numpy(mu + rng.normal(0, rng.choice([0.05, 0.5, 1.5]), (b, t))),
        "advantages": torch.from_numpy(rng.normal(0, 1, b)),
        "base": torch.from_numpy(mu + rng.normal(0, 0.5, (b, t))),
        "old": torch.from_numpy(mu + rng.normal(0, 0.5, (b, t))),
    }


def ours(
    given_: dict[str, torch.Tensor],
    dual: float,
    kind: Any = "clip",
    *,
    kl: float = 0.0,
    old: torch.Tensor | None = None,
    **masks: float,
) -> tuple[float, torch.Tensor]:
    """Our loss without the gap mask, and its gradient [B, T]. `kl`: its coefficient; `old`: the decoupled form."""
    logp = given_["logp"].clone().requires_grad_()
    mask = given_["mask"]
    term = TermSlice(
        name="binary",
        weight=1.0,
        advantages_K=given_["advantages"].reshape(len(mask), -1).expand_as(mask)[mask],
        mask_K=torch.ones(int(mask.sum()), dtype=torch.bool),
        denominator=float(len(mask) * LENGTH),
    )
    loss = micro_batch_loss(
        logp_K=logp[mask],
        mu_K=given_["mu"][mask],
        base_K=given_["base"][mask],
        terms=[term],
        kl_coef=kl,
        kl_denominator=float(len(mask) * LENGTH),
        old_K=None if old is None else old[mask],
        config=LossConfig(
            clip_low=0.8,
            clip_high=1.28,
            dual_clip=dual,
            token_ratio_min=1e-30,
            token_ratio_max=1e30,
            kind=kind,
            **masks,
        ),
        rows_K=torch.arange(len(mask))[:, None].expand_as(mask)[mask],
    )
    loss.total.backward()
    assert logp.grad is not None
    return loss.total.item(), logp.grad


def trls(
    grpo_loss: Any,
    given_: dict[str, torch.Tensor],
    dual: float | None,
    inputs: dict[str, torch.Tensor] | None = None,
    **changes: Any,
) -> tuple[float, torch.Tensor]:
    """TRL's `GRPOTrainer._compute_loss` itself, on log-probabilities that are given to it, and further `inputs`."""
    from trl import GRPOTrainer

    logp = given_["logp"].clone().requires_grad_()
    b, t = logp.shape
    settings = {
        "_get_per_token_logps_and_entropies": lambda *args, **kwargs: (
            logp,
            torch.zeros_like(logp),
            None,
        ),
        "aux_loss_enabled": False,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "get_off_policy_mask": GRPOTrainer.get_off_policy_mask,
        "importance_sampling_level": "token",
        "beta": 0.0,
        "args": SimpleNamespace(steps_per_generation=1, delta=dual, use_bias_correction_kl=True),
        "loss_type": "dr_grpo",
        "epsilon_low": 0.2,
        "epsilon_high": 0.28,
        "use_vllm": False,
        "max_completion_length": LENGTH,
        "current_gradient_accumulation_steps": 1,
        "model": SimpleNamespace(training=True),
        "_entropy_bonus_enabled": False,
        "_metrics": defaultdict(lambda: defaultdict(list)),
        "accelerator": SimpleNamespace(
            gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1
        ),
    }
    trainer = SimpleNamespace(**settings | changes)
    given_to_it = {
        "num_items_in_batch": torch.tensor(float(b * LENGTH)),
        "prompt_ids": torch.zeros(b, 1, dtype=torch.long),
        "prompt_mask": torch.ones(b, 1, dtype=torch.long),
        "completion_ids": torch.zeros(b, t, dtype=torch.long),
        "completion_mask": given_["mask"].long(),
        "advantages": given_["advantages"],
        "old_per_token_logps": given_["mu"],
    }
    loss = grpo_loss(trainer, None, given_to_it | (inputs or {}))
    loss.backward()
    assert logp.grad is not None
    return loss.item(), logp.grad


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_loss_matches_trl(grpo_loss: Any, seed: int) -> None:
    """dr_grpo with epsilon 0.2 and 0.28, and its two-sided `delta` as the dual clip."""
    given_ = draw(seed)
    for dual in (3.0, 1.5):
        (value, gradient), (theirs, slopes) = ours(given_, dual), trls(grpo_loss, given_, dual)
        assert value == pytest.approx(theirs, rel=1e-9, abs=1e-12)
        torch.testing.assert_close(gradient, slopes, rtol=1e-9, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_cispo_and_gspo_match_trl(grpo_loss: Any, seed: int) -> None:
    given_ = draw(seed)
    cispo = {"loss_type": "cispo", "epsilon_high": 5.0}
    gspo = {"importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4}
    for kind, changes in (("cispo", cispo), ("gspo", gspo)):
        value, gradient = ours(given_, 1e9, kind)
        theirs, slopes = trls(grpo_loss, given_, None, **changes)
        assert value == pytest.approx(theirs, rel=1e-9, abs=1e-12)
        torch.testing.assert_close(gradient, slopes, rtol=1e-9, atol=1e-12)


def decoupled(given_: dict[str, torch.Tensor], cap: float = 2.0) -> dict[str, torch.Tensor]:
    """What TRL makes of an engine's log-probabilities: `vllm_importance_sampling_mode` token_truncate."""
    weight = torch.exp(given_["old"] - given_["mu"]).clamp(max=cap)
    return {
        "old_per_token_logps": given_["old"],
        "sampling_per_token_logps": given_["mu"],
        "importance_sampling_ratio": weight,
    }


ENGINE = {"use_vllm": True, "vllm_importance_sampling_correction": True}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_decoupled_loss_matches_trl(grpo_loss: Any, seed: int) -> None:
    """The decoupled form, with the mask of sequences against the engine's log-probabilities."""
    given_ = draw(seed)
    cispo = {"loss_type": "cispo", "epsilon_high": 5.0}
    for kind, dual, changes in (("clip", 3.0, {}), ("cispo", 1e9, cispo)):
        for delta in (None, 0.05):
            own = ours(
                given_,
                dual,
                kind,
                old=given_["old"],
                **({} if delta is None else {"opsm_delta": delta}),
            )
            further = ENGINE | changes | {"off_policy_mask_threshold": delta}
            theirs = trls(
                grpo_loss, given_, dual if kind == "clip" else None, decoupled(given_), **further
            )
            assert own[0] == pytest.approx(theirs[0], rel=1e-9, abs=1e-12)
            torch.testing.assert_close(own[1], theirs[1], rtol=1e-9, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_one_step_with_a_truncated_weight_equals_cispo(grpo_loss: Any, seed: int) -> None:
    """In gradient: its surrogate's own ratio is 1 then, and the truncated weight is all that is left."""
    given_ = draw(seed)
    given_["old"] = given_["logp"]
    theirs = trls(grpo_loss, given_, 3.0, decoupled(given_, cap=5.0), **ENGINE)
    torch.testing.assert_close(ours(given_, 1e9, "cispo")[1], theirs[1], rtol=1e-9, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_kl_penalty_matches_trl_and_slime(grpo_loss: Any, seed: int) -> None:
    """In gradient: k3 times rho with its gradient (`use_bias_correction_kl`, slime's --use-unbiased-kl) is k2's."""
    given_ = draw(seed)
    own = ours(given_, 3.0, kl=0.2)[1]
    theirs = trls(grpo_loss, given_, 3.0, {"ref_per_token_logps": given_["base"]}, beta=0.2)[1]
    torch.testing.assert_close(own, theirs, rtol=1e-9, atol=1e-12)
    nothing = given_ | {"advantages": torch.zeros_like(given_["advantages"])}
    logp = given_["logp"].clone().requires_grad_()
    d = given_["base"] - logp
    k3 = torch.exp(logp - given_["mu"]) * (
        d.exp() - 1 - d
    )  # compute_approx_kl, kl_loss_type k3, importance_ratio
    (0.2 * (k3 * given_["mask"]).sum() / (len(d) * LENGTH)).backward()
    assert logp.grad is not None
    torch.testing.assert_close(ours(nothing, 3.0, kl=0.2)[1], logp.grad, rtol=1e-9, atol=1e-12)


def test_gspo_differs_where_token_ratios_differ(grpo_loss: Any) -> None:
    """Advantages token by token: TRL gives every token the reply's mean, GSPO-token each its own. Equal in value."""
    given_ = draw(11)
    given_["logp"] = given_["mu"]  # nothing is clipped
    given_["advantages"] = torch.from_numpy(
        np.random.default_rng(1).normal(0, 1, given_["mu"].shape)
    )
    sequence = {"importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4}
    own, theirs = ours(given_, 1e9, "gspo"), trls(grpo_loss, given_, None, **sequence)
    assert own[0] == pytest.approx(theirs[0], rel=1e-9)
    assert (own[1] - theirs[1]).abs().max() > 1e-3
    torch.testing.assert_close(own[1].sum(1), theirs[1].sum(1), rtol=1e-9, atol=1e-12)


def test_the_comparison_detects_a_difference(grpo_loss: Any) -> None:
    given_ = draw(3) | {
        "logp": draw(3)["mu"] + 2.0,
        "advantages": -torch.ones(len(draw(3)["mu"]), dtype=torch.float64),
    }
    assert ours(given_, 3.0)[0] != pytest.approx(trls(grpo_loss, given_, None)[0]), (
        "the dual clip is at work"
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_loss_matches_slime(seed: int) -> None:
    """slime/utils/ppo_utils.py, compute_policy_loss: eps_clip 0.2, eps_clip_high 0.28, eps_clip_c 3."""
    given_ = draw(seed)
    advantages = given_["advantages"][:, None]
    ratio = torch.exp(given_["logp"] - given_["mu"])  # exp(-ppo_kl)
    worse = torch.maximum(-ratio * advantages, -ratio.clamp(1 - 0.2, 1 + 0.28) * advantages)
    bounded = torch.where(advantages < 0, torch.minimum(-3.0 * advantages, worse), worse)
    expected = (bounded * given_["mask"]).sum().item() / (len(ratio) * LENGTH)
    assert ours(given_, 3.0)[0] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_cispo_gspo_and_truncated_weights_match_slime(seed: int) -> None:
    """compute_cispo_loss (eps_clip 1, eps_clip_high 4), compute_gspo_kl, vanilla_tis_function (tis_clip 2)."""
    given_ = draw(seed)
    mask, advantages = given_["mask"], given_["advantages"][:, None]

    def slimes(kind: str) -> tuple[float, torch.Tensor]:
        logp = given_["logp"].clone().requires_grad_()
        start = given_["old"] if kind == "tis" else given_["mu"]
        log_ratio = logp - start
        if kind == "gspo":
            log_ratio = (
                (log_ratio * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
            ).expand_as(logp)
        low, high = {"gspo": (1 - 3e-4, 1 + 4e-4), "tis": (0.8, 1.28)}.get(kind, (0.0, 5.0))
        ratio = log_ratio.exp()
        if kind == "cispo":
            loss = -ratio.clamp(low, high).detach() * advantages * logp
        else:
            worse = torch.maximum(-ratio * advantages, -ratio.clamp(low, high) * advantages)
            loss = torch.where(advantages < 0, torch.minimum(-3.0 * advantages, worse), worse)
        weight = torch.exp(start - given_["mu"]).clamp(0, 2)
        total = (loss * weight * mask).sum() / (len(mask) * LENGTH)
        total.backward()
        assert logp.grad is not None
        return total.item(), logp.grad

    for kind in ("cispo", "gspo", "tis"):
        old = given_["old"] if kind == "tis" else None
        own, theirs = ours(given_, 3.0, "clip" if kind == "tis" else kind, old=old), slimes(kind)
        assert own[0] == pytest.approx(theirs[0], rel=1e-9, abs=1e-12)
        torch.testing.assert_close(own[1], theirs[1], rtol=1e-9, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_geometric_rejection_matches_slime(seed: int) -> None:
    """examples/train_infer_mismatch_helper/mis.py: use_rs, rs_level geometric, 0.9 to 1.1."""
    given_ = draw(seed)
    given_["logp"] = given_["mu"] + 0.3 * (given_["logp"] - given_["mu"])
    mask, advantages = given_["mask"], given_["advantages"][:, None]
    drift = ((given_["logp"] - given_["mu"]) * mask).sum(1, keepdim=True) / mask.sum(
        1, keepdim=True
    )
    kept = mask * (drift.exp() >= 0.9) * (drift.exp() <= 1.1)
    ratio = torch.exp(given_["logp"] - given_["mu"])
    worse = torch.maximum(-ratio * advantages, -ratio.clamp(0.8, 1.28) * advantages)
    bounded = torch.where(advantages < 0, torch.minimum(-3.0 * advantages, worse), worse)
    expected = (bounded * kept).sum().item() / (len(ratio) * LENGTH)
    own = ours(given_, 3.0, geometric_low=0.9, geometric_high=1.1)[0]
    assert own == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_off_policy_sequence_mask_matches_trl(grpo_loss: Any, seed: int) -> None:
    """OPSM (DeepSeek-V3.2): `off_policy_mask_threshold`, with every surrogate."""
    given_ = draw(seed)
    gspo = {"importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4}
    for kind, dual, changes in (
        ("clip", 3.0, {}),
        ("cispo", 1e9, {"loss_type": "cispo", "epsilon_high": 5.0}),
        ("gspo", 1e9, gspo),
    ):
        for delta in (0.01, 0.2):
            value, gradient = ours(given_, dual, kind, opsm_delta=delta)
            theirs, slopes = trls(
                grpo_loss,
                given_,
                dual if kind == "clip" else None,
                off_policy_mask_threshold=delta,
                **changes,
            )
            assert value == pytest.approx(theirs, rel=1e-9, abs=1e-12)
            torch.testing.assert_close(gradient, slopes, rtol=1e-9, atol=1e-12)


def test_the_sequence_mask_masks_tokens() -> None:
    given_ = draw(3) | {
        "logp": draw(3)["mu"] - 0.1,
        "advantages": -torch.ones(len(draw(3)["mu"]), dtype=torch.float64),
    }
    assert ours(given_, 3.0)[1].any()
    assert not ours(given_, 3.0, opsm_delta=0.05)[1].any()
    assert not ours(given_, 3.0, geometric_low=0.99)[1].any()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_off_policy_sequence_mask_matches_slime(seed: int) -> None:
    """slime/utils/ppo_utils.py, compute_opsm_mask, before compute_policy_loss's values are added up."""
    given_, delta = draw(seed), 1e-4
    advantages, mask = given_["advantages"][:, None], given_["mask"]
    sequence_kl = ((given_["mu"] - given_["logp"]) * mask).sum(1, keepdim=True) / mask.sum(
        1, keepdim=True
    ).clamp_min(1)
    kept = 1 - ((advantages < 0) & (sequence_kl > delta)).double()
    ratio = torch.exp(given_["logp"] - given_["mu"])
    worse = torch.maximum(-ratio * advantages, -ratio.clamp(1 - 0.2, 1 + 0.28) * advantages)
    bounded = torch.where(advantages < 0, torch.minimum(-3.0 * advantages, worse), worse)
    expected = (bounded * kept * mask).sum().item() / (len(ratio) * LENGTH)
    assert ours(given_, 3.0, opsm_delta=delta)[0] == pytest.approx(expected, rel=1e-9, abs=1e-12)
