"""Following a distribution: the divergence and the head, against the reference, autograd, and TRL's own code."""

from __future__ import annotations

import warnings
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.learner.forward.lm_head import HiddenStates, TokenLogprobs
from openclaw_rl.learner.loss.distillation import divergence
from openclaw_rl.learner.loss.policy_loss import LossConfig, TermSlice, micro_batch_loss
from openclaw_rl.methods.types import Divergence

KINDS: dict[Divergence, float] = {"forward": 0.0, "reverse": 1.0, "jsd": 0.5}  # and TRL's alpha


def select_tokens(
    head: torch.nn.Module,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperature: torch.Tensor,
    **wanted: Any,
) -> TokenLogprobs:
    states = HiddenStates(
        head=head,
        hidden_KH=hidden,
        targets_K=targets,
        temperature_K=temperature,
        lengths=(len(targets),),
    )
    return states.token_logprobs(**wanted)


def random_logps(
    seed: int, width: int = 6, vocabulary: int = 12
) -> tuple[torch.Tensor, torch.Tensor]:
    """[T, N] of the student's likeliest tokens, and the teacher's log-probabilities of the same."""
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(
        rng.normal(0, rng.choice([0.1, 1.0, 4.0]), (2, int(rng.integers(1, 9)), vocabulary))
    )
    student, teacher = torch.log_softmax(logits, -1)
    ids = student.topk(width, -1).indices
    return student.gather(-1, ids), teacher.gather(-1, ids)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_divergence_and_its_gradient_match_the_reference(
    reference: ModuleType, seed: int
) -> None:
    student, teacher = random_logps(seed)
    for kind in KINDS:
        own = student.clone().requires_grad_()
        found = divergence(own, teacher, kind)
        (slopes,) = torch.autograd.grad(found.sum(), own)
        for t in range(len(student)):
            value, wanted = reference.divergence_token(
                student[t].tolist(), teacher[t].tolist(), kind
            )
            assert found[t].item() == pytest.approx(value, rel=1e-6, abs=1e-8)
            np.testing.assert_allclose(slopes[t], wanted, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_vocabulary_has_no_tail(kind: Divergence) -> None:
    """The rest is rounding, whose gradient would be noise; what is left is the divergence over all tokens."""
    student, teacher = (x.float() for x in random_logps(1, width=12))
    own = student.clone().requires_grad_()
    divergence(own, teacher, kind).sum().backward()
    assert own.grad is not None
    assert own.grad.isfinite().all()
    p, q = student.exp(), teacher.exp()
    middle = (p + q) / 2
    whole = {
        "reverse": (p * (p / q).log()).sum(-1),
        "forward": (q * (q / p).log()).sum(-1),
        "jsd": ((p * (p / middle).log()).sum(-1) + (q * (q / middle).log()).sum(-1)) / 2,
    }
    torch.testing.assert_close(
        divergence(student, teacher, kind), whole[kind], rtol=1e-4, atol=1e-5
    )


@pytest.fixture(scope="module")
def sdpo() -> ModuleType:
    """TRL's own formulas of self-distillation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.experimental.sdpo import loss_utils
    return loss_utils


@pytest.fixture(scope="module")
def sdft_loss() -> Any:
    """TRL's loss over a teacher's own likeliest tokens, which it has of a server."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.experimental.sdft.sdft_trainer import SDFTTrainer
    return SDFTTrainer._compute_server_distillation_loss


def drawn(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of student and teacher [T, V], ids [T], sampled log-probabilities [T]."""
    rng = np.random.default_rng(seed)
    t, v = int(rng.integers(1, 9)), 15
    student, teacher = (torch.from_numpy(rng.normal(0, 2, (t, v))) for _ in range(2))
    ids = torch.from_numpy(rng.integers(0, v, t))
    own = torch.log_softmax(student, -1).gather(-1, ids[:, None])[:, 0]
    return student, teacher, ids, own + torch.from_numpy(rng.normal(0, 0.8, t))


def ours(seed: int, kind: Divergence, by: str) -> tuple[float, torch.Tensor]:
    """The mean weighted divergence and its gradient by the student's logits, by our head and our loss."""
    student, teacher, ids, mu = drawn(seed)
    student.requires_grad_()
    head = torch.nn.Linear(15, 15, bias=False).double()
    torch.nn.init.eye_(head.weight)
    flat = torch.ones(len(ids))
    of = (student if by == "student" else teacher).detach()
    likeliest = select_tokens(head, of, ids, flat, top=5).ids_KN[:, 1:]
    theirs = select_tokens(head, teacher, ids, flat, ids_KN=likeliest).logps_KN[:, 1:].detach()
    picked = select_tokens(head, student, ids, flat, ids_KN=likeliest, floats=15 * 2)
    every = torch.ones(len(ids), dtype=torch.bool)
    term = TermSlice(
        name="x",
        weight=1.0,
        advantages_K=torch.zeros(len(ids), dtype=torch.float64),
        mask_K=every,
        denominator=float(len(ids)),
        divergence_K=divergence(picked.logps_KN[:, 1:], theirs, kind),
        ratio_cap=2.0,
    )
    bounds = LossConfig(
        clip_low=0.8, clip_high=1.28, dual_clip=3.0, token_ratio_min=1e-30, token_ratio_max=1e30
    )
    loss = micro_batch_loss(
        logp_K=picked.logp,
        mu_K=mu,
        base_K=mu,
        terms=[term],
        kl_coef=0.0,
        kl_denominator=1.0,
        config=bounds,
    )
    loss.total.backward()
    assert student.grad is not None
    return loss.total.item(), student.grad


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_over_the_students_tokens_it_equals_sdpo_of_trl(sdpo: ModuleType, seed: int) -> None:
    """`topk_logits` with the tail, alpha 0, 1 and 0.5, is_clip 2, on the same logits: value and gradient."""
    for kind, alpha in KINDS.items():
        student, teacher, ids, mu = drawn(seed)
        student.requires_grad_()
        own = torch.log_softmax(student, -1).gather(-1, ids[:, None])[:, 0]
        per_token = sdpo.compute_topk_self_distillation_loss(
            student,
            teacher,
            distillation_topk=5,
            distillation_alpha=alpha,
            distillation_add_tail=True,
        )
        loss = sdpo.apply_importance_sampling_clipping(per_token, own, mu, 2.0).mean()
        loss.backward()
        value, gradient = ours(seed, kind, "student")
        assert value == pytest.approx(loss.item(), rel=1e-9)
        torch.testing.assert_close(gradient, student.grad, rtol=1e-8, atol=1e-10)


def trls_sdft(loss: Any, seed: int, alpha: float) -> tuple[float, torch.Tensor]:
    """That loss as a whole, on logits that are given to it, and its gradient by the student's."""
    student, teacher, ids, mu = drawn(seed)
    student.requires_grad_()
    logps = torch.log_softmax(teacher, -1)
    top = logps.topk(5, -1)
    seen = {
        "actual_logprobs": logps.gather(-1, ids[:, None])[None, :, 0],
        "topk_logprobs": top.values[None],
        "topk_token_ids": top.indices[None],
    }
    trainer = SimpleNamespace(
        args=SimpleNamespace(
            distillation_mode="topk_logits",
            distillation_topk=5,
            distillation_alpha=alpha,
            distillation_add_tail=True,
            distillation_is_clip=2.0,
        ),
        num_loss_tokens_to_skip=0,
        state=SimpleNamespace(global_step=0),
        _last_loaded_step=0,
        accelerator=SimpleNamespace(gather=lambda x: x),
        _forward_logits=lambda **_: student[None],
        _get_teacher_token_logprobs_from_server=lambda *_: seen,
        _metrics={"train": {"self_distillation/server_logprob_abs_diff": []}},
        _log_self_distillation_metric=lambda *_: None,
    )
    every = torch.ones(1, len(ids))
    inputs = {
        "completion_ids": ids[None],
        "completion_mask": every,
        "prompt_ids": ids[None],
        "prompt_mask": every,
    }
    found = loss(
        trainer, SimpleNamespace(training=True), inputs | {"old_per_token_logps": mu[None]}
    )
    found.backward()
    assert student.grad is not None
    return found.item(), student.grad


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_over_the_teachers_tokens_it_equals_sdft_of_trl(sdft_loss: Any, seed: int) -> None:
    for kind, alpha in KINDS.items():
        value, gradient = ours(seed, kind, "teacher")
        theirs, slopes = trls_sdft(sdft_loss, seed, alpha)
        assert value == pytest.approx(theirs, rel=1e-9)
        torch.testing.assert_close(gradient, slopes, rtol=1e-8, atol=1e-10)


def heads() -> dict[str, torch.nn.Module]:
    from peft import LoraConfig as PeftLora
    from peft import get_peft_model

    torch.manual_seed(0)
    within = torch.nn.ModuleDict({"lm": torch.nn.Linear(8, 30, bias=False)})
    adapted = get_peft_model(within, PeftLora(r=2, target_modules=["lm"], init_lora_weights=False))
    return {
        "plain": torch.nn.Linear(8, 30, bias=False).double(),
        "bias": torch.nn.Linear(8, 30).double(),
        "lora": adapted.base_model.model["lm"].double(),
    }


@pytest.mark.parametrize("kind", ["plain", "bias", "lora"])
@pytest.mark.parametrize("rows", [1, 4, 100])
def test_the_head_scores_the_requested_tokens(kind: str, rows: int) -> None:
    """Targets, given tokens, the likeliest ones; in chunks of `rows`, at each token's temperature; and the slopes."""
    head = heads()[kind]
    rng = torch.Generator().manual_seed(1)
    hidden = torch.randn(11, 8, generator=rng, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(30, (11,), generator=rng)
    ids = torch.randint(
        30, (11, 3), generator=rng
    )  # some of them the target, or among the likeliest
    temperature = torch.rand(11, generator=rng) + 0.5
    whole = torch.log_softmax(head(hidden) / temperature[:, None], -1)
    wanted_ids = torch.cat([targets[:, None], ids, whole.topk(4, -1).indices], -1)
    weights = torch.randn(11, 8, generator=rng, dtype=torch.float64)
    trained = [hidden, *(p for p in head.parameters() if p.requires_grad)]
    wanted = torch.autograd.grad(
        (whole.gather(-1, wanted_ids) * weights).sum(), trained, retain_graph=True
    )

    picked = select_tokens(head, hidden, targets, temperature, ids_KN=ids, top=4, floats=30 * rows)
    assert torch.equal(picked.ids_KN, wanted_ids)
    torch.testing.assert_close(picked.logps_KN, whole.gather(-1, wanted_ids))
    torch.testing.assert_close(picked.entropy_K, -(whole.exp() * whole).sum(-1))
    assert not picked.entropy_K.requires_grad
    for got, want in zip(
        torch.autograd.grad((picked.logps_KN * weights).sum(), trained), wanted, strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)


def test_top_k_is_bounded_by_the_vocabulary() -> None:
    head = heads()["plain"]
    hidden = torch.randn(3, 8, dtype=torch.float64)
    assert select_tokens(
        head, hidden, torch.zeros(3, dtype=torch.long), torch.ones(3), top=99
    ).ids_KN.shape == (3, 31)
