"""Replies that the teacher sampled: their loss against a statement in float64, and what they alone can move."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.teacher_replies import SampledTeacherTerm
from openclaw_rl.methods.types import BatchLogprobs, Sample

Make = Callable[..., LocalTrainer]
Draw = Callable[..., list[Sample]]
WIDE = {"max_gap": 99.0, "max_batch_gap": 99.0, "max_step_kl": 1e9}
TOP = 7


def distributions(trainer: LocalTrainer, prompt: np.ndarray, sample: Sample) -> np.ndarray:
    """[R, V] log-probabilities of a fresh policy, which is the base, at the positions of the reply; float64."""
    ids = np.concatenate([prompt, sample.response_ids])[None]
    with torch.no_grad():
        logits = trainer.causal(input_ids=torch.from_numpy(ids).long()).logits[0].double()
    reply = logits[len(prompt) - 1 : -1] / sample.temperature
    return torch.log_softmax(reply, -1).numpy()


def top_divergence(
    reference: ModuleType, student: np.ndarray, teacher: np.ndarray, kind: str, of: np.ndarray
) -> float:
    """One position: the divergence over the likeliest tokens of one of them, and the tail."""
    ids = np.argsort(-of)[:TOP]
    return float(reference.divergence_token(student[ids].tolist(), teacher[ids].tolist(), kind)[0])


def mixed_batch(made: LocalTrainer, draw: Draw) -> list[Sample]:
    """Six replies with a hint and no score; half of them are the teacher's."""
    batch = draw(made, 5, reward=None, hinted_prompts=(np.array([5, 6, 7], np.int32),))
    return [
        replace(s, from_teacher=n % 2 == 0, logprobs=s.logprobs - 2.0 * (n % 2 == 0))
        for n, s in enumerate(batch)
    ]


@pytest.mark.parametrize("method", ["opd", "combine", "sdpo", "sdft"])
def test_the_loss_on_replies_of_the_teacher_is_the_forward_kl(
    trainer: Make, draw: Draw, reference: ModuleType, tmp_path: Path, method: str
) -> None:
    """Their sampled log-probabilities, which are the teacher's, occur nowhere in it."""
    made = trainer(method, **WIDE, topk=TOP, kl_coef=0.0)
    batch = mixed_batch(made, draw)
    rows = [
        (distributions(made, s.prompt_ids, s), distributions(made, s.hinted_prompts[0], s))
        for s in batch
    ]
    result = made.step(batch, str(tmp_path / "out"))
    length = float(np.mean([s.mask.sum() for s in batch]))
    told = [i for i, s in enumerate(batch) if s.from_teacher]
    means = [
        np.mean(
            [
                top_divergence(reference, rows[i][0][t], rows[i][1][t], "forward", rows[i][1][t])
                for t in np.flatnonzero(batch[i].mask)
            ]
        )
        for i in told
    ]
    assert result.metrics["loss/teacher_replies"] == pytest.approx(np.mean(means), rel=1e-4)
    own = result.metrics[f"loss/{'opd' if method == 'combine' else method}"]
    assert result.metrics["loss/total"] == pytest.approx(
        own + result.metrics["loss/teacher_replies"], rel=1e-6
    )
    alone = trainer(method, **WIDE, topk=TOP, kl_coef=0.0)
    without = alone.step([s for s in batch if not s.from_teacher], str(tmp_path / "own"))
    lengths = [float(np.mean([s.mask.sum() for s in batch if not s.from_teacher])), length]
    assert own == pytest.approx(without.metrics["loss/total"] * lengths[0] / lengths[1], rel=1e-4)


def test_the_entropy_is_reported_beside_that_of_the_teacher(
    trainer: Make, draw: Draw, tmp_path: Path
) -> None:
    """Means per trainable token of the policy's own replies; a batch without the teacher's replies has none."""
    made = trainer("opd", **WIDE, topk=TOP, learning_rate=5e-2)
    batch = mixed_batch(made, draw)

    def entropy(hinted: bool) -> float:
        own = [
            (s, s.hinted_prompts[0] if hinted else s.prompt_ids)
            for s in batch
            if not s.from_teacher
        ]
        found = [(distributions(made, prompt, s), s.mask.astype(bool)) for s, prompt in own]
        return float(
            np.mean(np.concatenate([-(np.exp(logp) * logp).sum(-1)[mask] for logp, mask in found]))
        )

    expected = {"entropy/before": entropy(False), "entropy/teacher": entropy(True)}
    metrics = made.step(batch, str(tmp_path / "out")).metrics
    expected["entropy/after"] = entropy(False)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    assert metrics["entropy/after"] != pytest.approx(metrics["entropy/before"], rel=1e-4)
    own = [sample for sample in batch if not sample.from_teacher]
    assert "entropy/after" not in made.step(own, str(tmp_path / "own")).metrics


def test_penalty_and_trust_region_count_only_replies_of_the_policy(
    trainer: Make, draw: Draw, tmp_path: Path
) -> None:
    """Over a teacher's replies, (log pi - log base)^2 / 2 is no estimate of a KL divergence of the policy."""

    def moved(only: Sequence[Sample] | None) -> dict[str, Any]:
        made = trainer("opd", **WIDE, kl_coef=0.5, learning_rate=5e-2)
        for n in range(2):  # the first step leaves the base
            batch = mixed_batch(made, draw)
            result = made.step(
                batch if only is None else only, str(tmp_path / f"{n}-{only is None}")
            )
        return dict(result.metrics)

    metrics = moved(None)
    made = trainer("opd", **WIDE)
    own = [s for s in mixed_batch(made, draw) if not s.from_teacher]
    assert metrics["turns"] == 6
    assert metrics["tokens"] == sum(s.mask.sum() for s in own)
    assert metrics["loss/kl"] > 0
    expected = metrics["kl/before"] * metrics["tokens"]
    length = float(np.mean([s.mask.sum() for s in mixed_batch(made, draw)]))
    assert metrics["loss/kl"] * 6 * length == pytest.approx(expected, rel=0.2), (
        "only their tokens are pulled back"
    )


PROMPT = np.array([0, 1], np.int32)


class OneToken:
    """A policy over four tokens that learns what the base says under one of two hints, which is nearly certain."""

    def __init__(self, made: LocalTrainer, out: Path) -> None:
        self.trainer, self._out, self._rng = made, out, np.random.default_rng(0)
        self.hints = self._opposite_hints()

    def says(self, prompt: np.ndarray, *, base: bool = False) -> np.ndarray:
        """Probabilities of the four tokens after a prompt."""
        rows = [
            TokenSequence(prompt_ids=prompt, response_ids=np.array([t], np.int32), temperature=1.0)
            for t in range(4)
        ]
        return np.exp([logp.item() for logp in self.trainer.logprobs(rows, base=base)])

    def _opposite_hints(self) -> list[np.ndarray]:
        """Two prompts after which the base is most certain of two different tokens."""
        prompts = [
            np.array([0, 1, *more], np.int32) for more in itertools.product(range(4), repeat=3)
        ]
        sure = sorted(prompts, key=lambda prompt: -self.says(prompt, base=True).max())
        other = next(
            p
            for p in sure
            if self.says(p, base=True).argmax() != self.says(sure[0], base=True).argmax()
        )
        return [sure[0], other]

    def follow(self, hint: np.ndarray, steps: int, *, teacher: int) -> float:
        """Steps on 8 replies, of which so many are the teacher's. Returns the probability of what the hint asks for."""
        for n in range(steps):
            own, told = self.says(PROMPT), self.says(hint, base=True)
            batch = [
                self._reply(hint, told if i < teacher else own, from_teacher=i < teacher, n=i)
                for i in range(8)
            ]
            self.trainer.step(batch, str(self._out / f"{len(list(self._out.iterdir()))}-{n}"))
        return float(self.says(PROMPT)[self.says(hint, base=True).argmax()])

    def _reply(self, hint: np.ndarray, p: np.ndarray, *, from_teacher: bool, n: int) -> Sample:
        token = self._rng.choice(4, p=p / p.sum())
        return Sample(
            turn=f"turn-{n}",
            agent="",
            prompt_ids=PROMPT,
            response_ids=np.array([token], np.int32),
            logprobs=np.log(p[[token]]).astype(np.float32),
            mask=np.ones(1, bool),
            temperature=1.0,
            version=0,
            reward=None,
            hinted_prompts=(hint,),
            from_teacher=from_teacher,
        )


def test_replies_of_the_teacher_correct_a_certain_policy(
    trainer: Make, four: str, tmp_path: Path
) -> None:
    """What it never samples, it cannot learn from its own replies."""
    wide = {
        "max_gap": 9.0,
        "max_batch_gap": 9.0,
        "max_step_kl": 0.1,
        "kl_coef": 0.0,
        "clip_grad": 10.0,
    }
    policy = OneToken(
        trainer("opd", four, **wide, learning_rate=2e-2, lora={"rank": 4}, topk=3), tmp_path
    )
    first, second = policy.hints
    assert policy.follow(first, 50, teacher=4) > 0.999
    assert policy.follow(second, 5, teacher=0) < 0.01
    assert policy.follow(second, 8, teacher=4) > 0.5


@given(arrays(np.float64, (2, 5), elements=st.floats(-2, 2)))
def test_the_tokens_of_the_teacher_give_the_gradient_of_the_forward_kl_on_average(
    logits: np.ndarray,
) -> None:
    """Over all tokens y ~ T: E[A grad log pi(y)] = -grad KL(T || pi), where no ratio pi / T is above the bound's 2."""
    student, teacher = (
        torch.from_numpy(logits[0]).requires_grad_(),
        torch.from_numpy(logits[1]).log_softmax(-1),
    )
    logps = student.log_softmax(-1)
    found = SampledTeacherTerm().loss_terms(
        evidence_of_tokens(logps.detach().numpy(), teacher.numpy()), {}
    )[0]
    advantages = torch.from_numpy(np.concatenate(found.advantages))
    ratios = (logps.detach() - teacher).exp()
    torch.testing.assert_close(advantages, (1 - ratios).clamp(min=-1))
    assume(bool((ratios <= 2).all()))
    (estimated,) = torch.autograd.grad(
        (teacher.exp() * advantages * logps).sum(), student, retain_graph=True
    )
    (exact,) = torch.autograd.grad((teacher.exp() * (teacher - logps)).sum(), student)
    torch.testing.assert_close(estimated, -exact, rtol=1e-9, atol=1e-12)


def evidence_of_tokens(student: np.ndarray, teacher: np.ndarray) -> BatchLogprobs:
    """Each token of a vocabulary as a teacher's reply of its own, with a hint."""
    samples = [
        Sample(
            turn=f"t{token}",
            agent="a",
            prompt_ids=np.array([1], np.int32),
            response_ids=np.array([token], np.int32),
            logprobs=teacher[[token]].astype(np.float32),
            mask=np.ones(1, bool),
            temperature=1.0,
            version=0,
            reward=None,
            hinted_prompts=(np.array([2], np.int32),),
            from_teacher=True,
        )
        for token in range(len(student))
    ]
    return BatchLogprobs(
        samples=samples,
        student_logprobs=[student[[token]] for token in range(len(student))],
        teacher_logprobs=[[teacher[[token]]] for token in range(len(student))],
    )


def test_a_token_with_zero_teacher_probability_is_bounded() -> None:
    evidence = evidence_of_tokens(np.array([-0.1, -3.0]), np.array([-2000.0, -0.01]))
    assert SampledTeacherTerm().loss_terms(evidence, {})[0].advantages[0].tolist() == [-1.0]
