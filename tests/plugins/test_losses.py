"""Losses of the owner's: the examples train, the wrong ones are named, and what does not fit is said in one line."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from openclaw_rl.common.policy_digest import digest_of_folder
from openclaw_rl.errors import ConfigError, PluginError
from openclaw_rl.gates.metric_gates import rejection_reason
from openclaw_rl.learner.loss.plugin_loss import load_plugin_loss, tensor_gae
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import Sample
from openclaw_rl.settings.load import from_flat, train_settings

Make = Callable[..., LocalTrainer]
Draw = Callable[..., list[Sample]]
FREE = {"max_gap": 9.0, "max_step_kl": 1e9, "learning_rate": 1e-3}
LOSSES = {
    "custom_loss.py": ("binary", "compute_loss", 0),
    "custom_opd_loss.py": ("opd", "compute_opd_loss", 1),
    "custom_opd_loss_corrected.py": ("opd", "compute_opd_loss", 0),
    "hybrid_loss.py": ("combine", "compute_hybrid_loss", 1),
    "hybrid_loss_corrected.py": ("combine", "compute_hybrid_loss", 0),
}


def weights(trainer: LocalTrainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters() if p.requires_grad])


def hinted(batch: list[Sample]) -> list[Sample]:
    """With a hint and a score each."""
    return [
        replace(
            s,
            hinted_prompts=(np.concatenate([s.prompt_ids, [n + 2]]).astype(np.int32),),
            reward=(-1.0) ** n,
        )
        for n, s in enumerate(batch)
    ]


@pytest.mark.parametrize("name", LOSSES)
def test_the_examples_train_and_the_wrong_ones_are_named(
    trainer: Make,
    draw: Draw,
    examples: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setattr(logging.getLogger("openclaw_rl"), "propagate", True)
    method, function, wrong = LOSSES[name]
    made = trainer(method, loss_path=str(examples / name), **FREE)
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == wrong
    for words in warnings:
        assert f"{name}: {function} pushes the wrong way: the teacher prefers the token" in words
        assert "a step lowers the token's probability" in words
    before = weights(made)
    result = made.step(hinted(draw(made, 0)), str(tmp_path / "policy"))
    assert not weights(made).equal(before)
    assert result.metrics["plugin/wrong_signs"] == wrong
    assert np.isfinite(result.metrics["loss/custom"])
    assert result.metrics["loss/total"] == pytest.approx(result.metrics["loss/custom"])
    assert {"kl", "kl/step", "gradient/norm", "gap", "step/scale"} <= result.metrics.keys()
    if function == "compute_hybrid_loss":
        parts = [result.metrics[f"loss/custom/{part}_loss"] for part in ("binary", "opd")]
        assert result.metrics["loss/custom/total_loss"] == pytest.approx(sum(parts), abs=1e-6)
    assert result.digest == digest_of_folder(tmp_path / "policy")
    (plugin,) = json.loads((tmp_path / "policy" / "trainer.json").read_text())["plugins"]
    assert plugin["function"] == function
    assert plugin["path"].endswith(name)
    assert len(plugin["sha256"]) == 64


@pytest.mark.parametrize("micro", [1, 4096])
def test_the_corrected_distillation_equals_the_built_in_loss(
    trainer: Make, draw: Draw, examples: Path, tmp_path: Path, micro: int
) -> None:
    """The mean over each reply's tokens comes to our denominators, however the batch is cut."""
    shared = FREE | {"kl_coef": 0.0, "opd_clip": 99.0, "gap_low": 1e-9, "gap_high": 1e9}
    ours = trainer("opd", **shared)
    batch = hinted(draw(ours, 3))
    path = str(examples / "custom_opd_loss_corrected.py")
    theirs = trainer("opd", loss_path=path, micro_tokens=micro, **shared)
    start = weights(ours)
    steps = [t.step(batch, str(tmp_path / str(n))).metrics for n, t in enumerate((ours, theirs))]
    assert (weights(ours) - start).abs().max() > 1e-4
    assert steps[0]["gradient/norm"] == pytest.approx(steps[1]["gradient/norm"], rel=1e-4)
    assert steps[0]["kl/step"] == pytest.approx(steps[1]["kl/step"], rel=1e-3)


def test_the_clipped_surrogate_equals_the_built_in_loss(
    trainer: Make, draw: Draw, examples: Path, tmp_path: Path
) -> None:
    """Off policy, with clips and with tokens that the band takes out."""
    shared = FREE | {"kl_coef": 0.0, "clip_high": 1.2, "dual_clip": 1e9}
    ours, theirs = (
        trainer("binary", **shared),
        trainer("binary", loss_path=str(examples / "custom_loss.py"), **shared),
    )
    batch = [s for s in draw(ours, 5, 12, noise=0.6) if s.reward is not None]
    steps = [t.step(batch, str(tmp_path / str(n))).metrics for n, t in enumerate((ours, theirs))]
    assert steps[0]["masked/gap"] == steps[1]["masked/gap"] > 0
    assert steps[0]["clipped/binary"] > 0
    assert steps[0]["loss/total"] == pytest.approx(steps[1]["loss/custom"], rel=1e-4)
    assert steps[0]["gradient/norm"] == pytest.approx(steps[1]["gradient/norm"], rel=1e-4)


def test_a_loss_holds_to_the_trust_region(
    trainer: Make, draw: Draw, examples: Path, tmp_path: Path
) -> None:
    path = str(examples / "custom_loss.py")
    made = trainer("binary", loss_path=path, learning_rate=3e-2, max_gap=9.0, max_step_kl=0.001)
    metrics = made.step(hinted(draw(made, 0)), str(tmp_path / "policy")).metrics
    assert metrics["step/scale"] < 1
    assert metrics["kl/step"] <= 0.001


PLAIN = "def compute_loss(policy_logits, reference_logits, rewards, advantages, config):\n    "


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PLAIN + "return policy_logits", r"returned a tensor of shape \(1,\), float32, expected a scalar float tensor"),
        (PLAIN + "return 1.0", "returned a value of type float, expected a scalar float tensor"),
        (PLAIN + "return -policy_logits.detach().mean()", "without a gradient, .* depends on policy_logits"),
        (PLAIN + "return rewards[7]", r"mine\.py:2: compute_loss raised IndexError.*given tensors of shape \(1,\)"),
        ("async " + PLAIN + "return policy_logits.mean()",
         r"mine\.py:1: compute_loss is an async function, expected `def compute_loss"),
        (PLAIN + "return (policy_logits * float('nan')).mean()", "returned nan for a reply of one token, expected"),
        (PLAIN + "return (policy_logits - policy_logits.detach()).abs().sqrt().mean()", "a non-finite gradient"),
        ("import torch\n" + PLAIN + "return torch.zeros((), requires_grad=True)", "does not reach policy_logits"),
        (PLAIN + "ratio = policy_logits.exp()\n    loss = ratio.mean()\n    ratio.mul_(2)\n    return loss",
         "the gradient of compute_loss raised RuntimeError"),
        ("def compute_loss(logits, labels): ...", r"mine\.py:1: got compute_loss\(logits, labels\), expected compute_"),
        ("def loss(): ...", "no compute_loss or compute_opd_loss or compute_hybrid_loss. It defines: loss"),
        ("def compute_opd_loss(student_logprobs, teacher_logprobs, advantage_mask, clip_ratio): ...",
         "follows a teacher, but the method uses no hints"),
        ("def compute_hybrid_loss(**all): return (all['student_logprobs'].mean(), 1)",
         "the method uses no hints"),
    ],
)  # fmt: skip
def test_a_loss_that_does_not_fit_is_reported_before_training(
    trainer: Make, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(PluginError, match=rf"^train\.loss\.path: .*{words}"):
        trainer("binary", loss_path=str(tmp_path / "mine.py"))


OPD = "def compute_opd_loss(student_logprobs, teacher_logprobs, advantage_mask, clip_ratio):\n    "
HYBRID = """
def compute_hybrid_loss(student_logprobs, teacher_logprobs, scalar_rewards, opd_weight, binary_weight, **rest):
    score, gap = compute_gae(scalar_rewards), (teacher_logprobs - student_logprobs).detach()
    binary, opd = -(score * student_logprobs).mean(), {sign}(gap * student_logprobs).mean()
    return binary_weight * binary + opd_weight * opd, {{"opd": opd}}
"""
SWAPPED = "return -(advantages * (reference_logits - policy_logits).exp()).mean()"
THREE = (
    "weights = torch.tensor([2.0, -2.0, -4.0])[: len(advantages)]\n"
    "    return -(weights * advantages * policy_logits).mean()"
)
FAR = "d = (teacher_logprobs - student_logprobs).detach()\n    return -(d * (1 - d.abs()) * student_logprobs).mean()"


@pytest.mark.parametrize(
    ("method", "text", "words"),
    [
        ("binary", PLAIN + SWAPPED, "the advantage is -1, and a step raises"),
        ("binary", "import torch\n" + PLAIN + THREE, "the advantage of each of three tokens is +1, and a step lowers"),
        ("opd", OPD + "return -student_logprobs.mean()", "the teacher likes the token less"),
        ("opd", OPD + FAR, "the teacher likes less each of three tokens (0.05, the student 0.5), and a step raises"),
        ("combine", HYBRID.format(sign=""), "the teacher prefers the token"),
        ("binary", PLAIN + "return -(policy_logits * advantages).mean()", None),
        ("binary", PLAIN + "return -((policy_logits - reference_logits).mean().exp() * advantages.mean())", None),
        ("opd", OPD + "return ((student_logprobs - teacher_logprobs) ** 2 * advantage_mask).mean()", None),
        ("opd", OPD + "d = (teacher_logprobs - student_logprobs).detach().clamp(-0.5, 0.5)\n"
         "    return -(d * student_logprobs).mean()", None),
        ("combine", HYBRID.format(sign="-"), None),
    ],
)  # fmt: skip
def test_the_way_that_a_loss_pushes_is_found(
    tmp_path: Path, method: Any, text: str, words: str | None
) -> None:
    (tmp_path / "mine.py").write_text(text)
    train = train_settings({"method": method, "loss.path": str(tmp_path / "mine.py")})
    custom = load_plugin_loss(train, make_method(train))
    assert custom is not None
    assert (
        any(words in said for said in custom.sign_problems) if words else not custom.sign_problems
    )


def test_the_shape_of_a_hybrid_result(trainer: Make, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def compute_hybrid_loss(**all): return all['student_logprobs'].mean()")
    with pytest.raises(
        PluginError,
        match=r"compute_hybrid_loss returned a tensor of shape \(\), .* expected \(loss, metrics\)",
    ):
        trainer("combine", loss_path=str(file))
    file.write_text(
        "def compute_hybrid_loss(**all): return all['student_logprobs'].mean(), {'a': 'b'}"
    )
    with pytest.raises(PluginError, match="a metric that is not a number"):
        trainer("combine", loss_path=str(file))
    file.write_text("def compute_hybrid_loss(**all): return all['student_logprobs'].mean(), {}")
    with pytest.raises(PluginError, match="needs scores"):
        trainer("opd", loss_path=str(file))


NOT_FINITE = """
def compute_hybrid_loss(student_logprobs, teacher_logprobs, scalar_rewards, **rest):
    gap = student_logprobs - teacher_logprobs.detach()
    loss = (gap.square() - scalar_rewards.sum() * student_logprobs).mean()
    return loss, {"sound": 2.0, "spread": student_logprobs.detach()[:1].std(), "far": float("inf")}
"""


@pytest.mark.filterwarnings("ignore:std")  # torch says so of one number
def test_a_metric_that_is_not_finite_is_named_and_takes_no_step_away(
    trainer: Make,
    draw: Draw,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("openclaw_rl"), "propagate", True)
    file = tmp_path / "mine.py"
    file.write_text(NOT_FINITE)
    made = trainer("combine", loss_path=str(file), **FREE)
    wide = dict.fromkeys(("safety.gate_grad_norm", "safety.gate_kl", "safety.max_step_kl"), 1e9)
    for number in range(2):
        metrics = made.step(hinted(draw(made, number)), str(tmp_path / str(number))).metrics
        assert rejection_reason(metrics, train_settings(wide)) is None
        assert np.isfinite(metrics["loss/custom/sound"])
        assert not {"loss/custom/spread", "loss/custom/far"} & metrics.keys()
    messages = sorted(r.getMessage() for r in caplog.records if "as its metric" in r.getMessage())
    assert len(messages) == 2
    assert (
        f"{file}: compute_hybrid_loss returned inf as its metric 'far', expected a finite number"
        in messages[0]
    )
    assert (
        f"{file}: compute_hybrid_loss returned nan as its metric 'spread', expected a finite number"
        in messages[1]
    )


def test_an_error_during_training_names_its_line(trainer: Make, draw: Draw, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        PLAIN
        + "assert len(rewards) in (1, 3), 'too long'\n    return -(advantages * policy_logits).mean()"
    )
    made = trainer("binary", loss_path=str(file), **FREE)
    with pytest.raises(
        PluginError, match=r"mine\.py:2: compute_loss raised AssertionError: too long"
    ):
        made.step(hinted(draw(made, 0)), str(tmp_path / "policy"))


def test_advantages_are_estimated_as_the_formula_says() -> None:
    """A_t = sum_k (gamma lambda)^k delta_{t+k}, stated a second time."""
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=7), rng.normal(size=7)
    after = np.append(values[1:], 0.0)
    delta = rewards + 0.9 * after - values
    stated = [sum((0.9 * 0.8) ** (k - t) * delta[k] for k in range(t, 7)) for t in range(7)]
    got = tensor_gae(torch.tensor(rewards), torch.tensor(values), gamma=0.9, lambda_=0.8)
    torch.testing.assert_close(got, torch.tensor(stated))
    torch.testing.assert_close(
        tensor_gae(torch.tensor([0.0, 0.0, -1.0])), torch.tensor([-1.0, -1.0, -1.0])
    )
    with pytest.raises(ValueError, match="expected rewards and values"):
        tensor_gae(torch.zeros(2, 2))


@pytest.mark.parametrize(
    "other",
    [
        ("method", "sdpo"),
        ("distill.target", "student_topk"),
        ("loss.surrogate", "gspo"),
        ("loss.sequence_mask", "opsm"),
    ],
)
def test_settings_that_would_be_without_effect_are_refused(other: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match=rf"train\.{other[0]} {other[1]} would be without effect"):
        from_flat({"train.loss.path": "x.py", f"train.{other[0]}": other[1]})
