"""Teachers of the real trainer: how many passes they cost, what they tell, and where the policy goes with them."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from openclaw_rl.common.policy_digest import EMA_TEACHER_FILE
from openclaw_rl.errors import ModelError
from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.types import Sample

pytestmark = pytest.mark.system

Make = Callable[..., LocalTrainer]
Draw = Callable[..., list[Sample]]
WIDE = {"max_gap": 99.0, "max_batch_gap": 99.0, "max_step_kl": 1e9}


@pytest.mark.parametrize("method", ["opd", "combine", "sdpo", "sdft"])
def test_teachers_cost_one_pass_for_all_hints(
    trainer: Make, draw: Draw, tmp_path: Path, method: str
) -> None:
    """The step's own pass, one for base and teachers, one after the step; of tokens: each prefix once in each."""
    made = trainer(method, **WIDE)
    hint = np.array([7, 7, 7], np.int32)
    batch = [
        replace(
            s, hinted_prompts=tuple(np.concatenate([s.prompt_ids, hint[:n]]) for n in (1, 2, 3))
        )
        for s in draw(made, 4)
    ]
    tokens: list[int] = []
    made.causal.get_decoder().register_forward_hook(
        lambda _, __, kwargs, out: tokens.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    assert made.step(batch, str(tmp_path / "out")).folder is not None
    plain = {
        (*s.prompt_ids, *s.response_ids)[:n]
        for s in batch
        for n in range(1, len(s.prompt_ids) + len(s.mask))
    }
    hinted = {
        (*p, *s.response_ids)[:n]
        for s in batch
        for p in s.hinted_prompts
        for n in range(1, len(p) + len(s.mask))
    }
    assert tokens == [len(plain), len(plain | hinted), len(plain)]


@pytest.mark.parametrize("method", ["sdpo", "sdft"])
def test_metrics_of_a_step(trainer: Make, draw: Draw, tmp_path: Path, method: str) -> None:
    made = trainer(method, **WIDE, topk=9, kl_coef=0.0)
    batch = draw(
        made, 2, hinted_prompts=(np.array([5, 6, 7], np.int32), np.array([8, 9], np.int32))
    )
    metrics = made.step(batch, str(tmp_path / "out")).metrics
    assert metrics[f"loss/{method}"] == pytest.approx(metrics["loss/total"]) != 0
    assert 0 < metrics["overlap"] < 1
    assert 0 < metrics["tail"] < 1
    assert metrics[f"capped/{method}"] == 0


def test_a_teacher_that_equals_the_policy_gives_no_step(
    trainer: Make, draw: Draw, tmp_path: Path
) -> None:
    for method in ("sdpo", "sdft"):
        made = trainer(method)
        batch = [replace(s, hinted_prompts=(s.prompt_ids,)) for s in draw(made, 0)]
        assert made.step(batch, str(tmp_path / "out")).folder is None


def test_several_epochs_keep_the_target_from_before_the_step(
    trainer: Make, draw: Draw, reference: ModuleType, tmp_path: Path
) -> None:
    """The decoupled form: in the first of the steps a position weighs min(old / mu, 2), and there is no band."""
    settings_: dict[str, Any] = WIDE | {
        "kl_coef": 0.0,
        "topk": 4,
        "epochs": 2,
        "learning_rate": 1e-12,
    }
    made = trainer("sdpo", **settings_)
    batch = draw(made, 6, noise=0.7, hinted_prompts=(np.array([5, 6, 7], np.int32),))
    stated = []
    for s in batch:
        rows = [
            TokenSequence(prompt_ids=p, response_ids=s.response_ids, temperature=s.temperature)
            for p in (s.prompt_ids, *s.hinted_prompts)
        ]
        (student,) = made._runner.logprobs(rows[:1], top=4)
        (teacher,) = made._runner.logprobs(rows[1:], ids=[student.ids_KN[:, 1:]])  # still the base
        pairs = zip(student.logps_KN[:, 1:].tolist(), teacher.logps_KN[:, 1:].tolist(), strict=True)
        stated.append(
            {
                "logp": student.logp.tolist(),
                "mu": s.logprobs.tolist(),
                "mask": s.mask.tolist(),
                "target": list(pairs),
            }
        )
    average_length = np.mean([s.mask.sum() for s in batch])
    value, _ = reference.followed_loss(
        stated,
        kind="reverse",
        cap=2.0,
        average_length=average_length,
        gap_low=0.5,
        gap_high=5.0,
        decoupled=True,
    )
    metrics = made.step(batch, str(tmp_path / "out")).metrics
    assert metrics["loss/sdpo"] == pytest.approx(value, rel=1e-4)
    assert metrics["capped/sdpo"] > 0


PROMPT, HINTED = np.array([2, 0, 1], np.int32), np.array([2, 0, 1, 3, 3, 0, 1], np.int32)


class Four:
    """A model with four tokens that is asked one question, and told the same hint, for some steps."""

    def __init__(self, made: LocalTrainer, root: Path) -> None:
        self._made, self._root, self._rng = made, root, np.random.default_rng(0)
        self.teacher = self.says(HINTED, base=True)

    def says(self, prompt: np.ndarray, *, base: bool = False) -> np.ndarray:
        rows = [
            TokenSequence(prompt_ids=prompt, response_ids=np.array([v], np.int32), temperature=1.0)
            for v in range(4)
        ]
        return np.concatenate([x.numpy() for x in self._made.logprobs(rows, base=base)]).astype(
            np.float64
        )

    def distance(self) -> float:
        """KL(policy || base under the hint), nats."""
        logp = self.says(PROMPT)
        return float((np.exp(logp) * (logp - self.teacher)).sum())

    def follow(self, steps: int) -> dict[str, float]:
        """The metrics of the last step; earlier, when there was nothing left to say."""
        metrics: dict[str, float] = {}
        for step in range(steps):
            logp = self.says(PROMPT)
            ids = self._rng.choice(4, size=8, p=np.exp(logp) / np.exp(logp).sum())
            result = self._made.step(
                [self._sample(i, logp) for i in ids], str(self._root / str(step))
            )
            if result.folder is None:
                break
            metrics = dict(result.metrics)
        return metrics

    def _sample(self, token: int, logp: np.ndarray) -> Sample:
        return Sample(
            turn=f"{self._rng.random()}",
            agent="a",
            prompt_ids=PROMPT,
            response_ids=np.array([token], np.int32),
            logprobs=logp[[token]].astype(np.float32),
            mask=np.ones(1, bool),
            temperature=1.0,
            version=0,
            reward=None,
            hinted_prompts=(HINTED,),
        )


@pytest.fixture
def asked(trainer: Make, four: str, tmp_path: Path) -> Callable[..., Four]:
    def make(method: str, **changes: Any) -> Four:
        wide = {
            "max_gap": 9.0,
            "max_batch_gap": 9.0,
            "max_step_kl": 0.1,
            "kl_coef": 0.0,
            "clip_grad": 10.0,
        }
        made = trainer(
            method, four, **wide | {"learning_rate": 2e-2, "lora": {"rank": 4}} | changes
        )
        return Four(made, Path(tempfile.mkdtemp(dir=tmp_path)))

    return make


@pytest.mark.parametrize(("method", "kind"), [("sdpo", "reverse"), ("sdft", "forward")])
def test_distillation_converges_to_the_hinted_base(
    asked: Callable[..., Four], method: str, kind: str
) -> None:
    """From 0.2 nats away, in 60 steps: three tokens and the tail are all there is."""
    policy = asked(method, topk=3, divergence=kind)
    assert policy.distance() > 0.1
    policy.follow(60)
    assert policy.distance() < 0.01
    np.testing.assert_allclose(policy.says(HINTED, base=True), policy.teacher, atol=1e-6)


def test_the_bound_limits_the_ema_teacher(asked: Callable[..., Four]) -> None:
    """Without one, it takes its student to where one token is nearly all; the frozen base is reached (above)."""
    free, held = (
        asked(
            "sdpo",
            topk=3,
            reference="ema",
            average_bound=bound,
            learning_rate=1e-2,
            max_step_kl=1e9,
        )
        for bound in (1e9, 0.05)
    )
    free_metrics, held_metrics = free.follow(40), held.follow(40)
    assert np.exp(free.says(PROMPT)).max() > 0.97
    assert (free_metrics["teacher/moved"], free_metrics["teacher/kl"] > 0.3) == (1.0, True)
    assert np.exp(held.says(PROMPT)).max() < 0.92
    assert (held_metrics["teacher/moved"], held_metrics["teacher/kl"] <= 0.05) == (0.0, True)
    assert held.distance() < 0.06 < 0.12 < free.distance()


@pytest.mark.parametrize("weights", ["lora", "full"])
def test_the_ema_teacher_is_restored(
    trainer: Make, draw: Draw, tmp_path: Path, caplog: pytest.LogCaptureFixture, weights: str
) -> None:
    """Three steps are two, a new process and one more. It moves by its rate towards what was trained."""
    hint = (np.array([5, 6, 7], np.int32),)
    chosen: dict[str, Any] = WIDE | {
        "reference": "ema",
        "average_rate": 0.3,
        "average_bound": 1e9,
    }
    chosen |= {"weights": weights, "learning_rate": 1e-2 if weights == "lora" else 1e-4}

    def tensors(made: LocalTrainer) -> dict[str, torch.Tensor]:
        assert made._ema_teacher is not None
        return {name: tensor.clone() for name, tensor in made._ema_teacher._tensors.items()}

    straight = trainer("sdpo", **chosen)
    assert "the teacher follows its student, and both can drift" in caplog.text
    batches = [draw(straight, seed, hinted_prompts=hint) for seed in range(3)]
    results = []
    for n, batch in enumerate(batches):
        before = tensors(straight)
        results.append(straight.step(batch, str(tmp_path / f"straight-{n}")))
        for name, tensor in tensors(straight).items():
            wanted = before[name].lerp(straight._weights.parameters[name].detach(), 0.3)
            torch.testing.assert_close(tensor, wanted)
    assert any((tensors(straight)[name] != before[name]).any() for name in before)

    again = trainer("sdpo", **chosen)
    again.load(folder=results[1].folder, method_state=json.loads(json.dumps(results[1].memory)))
    rest = again.step(batches[2], str(tmp_path / "again"))
    assert rest.digest == results[2].digest
    assert rest.metrics["teacher/kl"] == results[2].metrics["teacher/kl"] > 0
    for name, tensor in tensors(straight).items():
        assert torch.equal(tensor, tensors(again)[name])
    again.load(folder=None, method_state={})
    for name, tensor in tensors(again).items():
        assert torch.equal(tensor, again._weights.parameters[name].detach()), "on the base again"


def test_a_missing_or_other_ema_teacher_is_handled(
    trainer: Make, draw: Draw, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hint = (np.array([5, 6, 7], np.int32),)
    plain = trainer("sdpo", **WIDE)
    folder = plain.step(draw(plain, 0, hinted_prompts=hint), str(tmp_path / "plain")).folder
    assert folder is not None
    assert not (Path(folder) / EMA_TEACHER_FILE).exists()
    made = trainer("sdpo", **WIDE, reference="ema")
    with caplog.at_level(logging.WARNING):
        made.load(folder=folder, method_state={})
    assert "has no moving average: it starts at the weights of this policy" in caplog.text
    folder = made.step(draw(made, 1, hinted_prompts=hint), str(tmp_path / "with")).folder
    assert folder is not None
    (Path(folder) / EMA_TEACHER_FILE).write_bytes(
        (Path(folder) / "adapter_model.safetensors").read_bytes()
    )
    with pytest.raises(ModelError, match="the moving average does not match the trained weights"):
        made.load(folder=folder, method_state={})


def test_the_ema_is_the_teacher_and_the_base_is_unchanged(
    trainer: Make, draw: Draw, tmp_path: Path
) -> None:
    """With a rate of 1 it is the policy itself: told nothing, it says what the student says."""
    made = trainer(
        "sdpo", **WIDE, reference="ema", average_rate=1.0, average_bound=1e9, learning_rate=1e-2
    )
    batch = draw(made, 0, hinted_prompts=(np.array([5, 6, 7], np.int32),))
    made.step(batch, str(tmp_path / "0"))
    seen, _ = made._scorer.score_batch(
        [replace(s, hinted_prompts=(s.prompt_ids,)) for s in batch], made._frame._method
    )
    for own, (teacher,), base in zip(seen.student, seen.teachers, seen.base, strict=True):
        torch.testing.assert_close(teacher, own, rtol=0, atol=1e-5)
        assert (base - own).abs().max() > 1e-4
