"""The guided teacher of practice, against its formula in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from openclaw_rl.learner.forward.lm_head import PLAUSIBLE_SHARE, HiddenStates, guided_scores
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.types import LessonGap, Sample
from openclaw_rl.practice.session import missing_share

Make = Callable[..., LocalTrainer]
Draw = Callable[..., list[Sample]]
HINTED_PROMPT = (np.array([5, 6, 7], np.int32),)
WIDE = {"max_gap": 99.0, "max_batch_gap": 99.0, "max_step_kl": 1e9}


def base_distribution(trainer: LocalTrainer, prompt: np.ndarray, sample: Sample) -> torch.Tensor:
    """[R, V] log-probabilities of the base at the positions of the reply; float64."""
    ids = torch.from_numpy(np.concatenate([prompt, sample.response_ids])[None]).long()
    with torch.no_grad(), trainer._weights.using_base():
        logits = trainer.causal(input_ids=ids).logits[0].double()
    return torch.log_softmax(logits[len(prompt) - 1 : -1] / sample.temperature, -1)


def guided_distribution(hinted: torch.Tensor, plain: torch.Tensor, guidance: float) -> torch.Tensor:
    """The definition, written separately: h + g (h - p), where only plausible tokens are preferred."""
    rows = []
    for h, p in zip(hinted, plain, strict=True):
        least = h.max() + math.log(PLAUSIBLE_SHARE)
        logits = [
            h[v] + guidance * (h[v] - p[v] if h[v] >= least or h[v] < p[v] else 0.0)
            for v in range(len(h))
        ]
        rows.append(torch.log_softmax(torch.stack(logits), -1))
    return torch.stack(rows)


@pytest.mark.parametrize("micro_tokens", [4096, 24])
def test_the_teacher_of_practice_is_guided_and_others_are_not(
    trainer: Make, draw: Draw, micro_tokens: int
) -> None:
    """In one batch: guided rows, rows with a hint alone, and rows without a hint."""
    made = trainer("combine", **WIDE, topk=7, micro_tokens=micro_tokens)
    samples = [
        replace(
            sample,
            hinted_prompts=HINTED_PROMPT if number % 3 else (),
            guidance=(None, None, 1.5)[number % 3],
        )
        for number, sample in enumerate(draw(made, 3))
    ]
    batch, _ = made._scorer.score_batch(samples, made._frame.method_for(samples))
    assert [sample.guidance for sample in batch.samples].count(1.5) >= 2
    for i, sample in enumerate(batch.samples):
        plain = base_distribution(made, sample.prompt_ids, sample)
        own = torch.from_numpy(sample.response_ids).long().unsqueeze(-1)
        torch.testing.assert_close(
            batch.base[i].double(), plain.gather(-1, own)[:, 0], atol=1e-4, rtol=0
        )
        if not sample.hinted_prompts:
            assert batch.teachers[i] == []
            continue
        hinted = base_distribution(made, HINTED_PROMPT[0], sample)
        expected = (
            hinted
            if sample.guidance is None
            else guided_distribution(hinted, plain, sample.guidance)
        )
        torch.testing.assert_close(
            batch.teachers[i][0].double(), expected.gather(-1, own)[:, 0], atol=1e-4, rtol=0
        )


def test_guidance_of_zero_is_the_hinted_model_and_more_of_it_is_further_from_the_plain_one() -> (
    None
):
    """Over the mean of many positions, in KL to the plain distribution."""
    torch.manual_seed(3)
    head = torch.nn.Linear(8, 40, bias=False).double()
    ids = torch.randint(0, 40, (30,))
    every = torch.arange(40).expand(30, 40)

    def states(hidden: torch.Tensor) -> HiddenStates:
        temperature = torch.full((30,), 0.7, dtype=torch.float64)
        return HiddenStates(
            head=head, hidden_KH=hidden, targets_K=ids, temperature_K=temperature, lengths=(30,)
        )

    plain = states(torch.randn(30, 8, dtype=torch.float64))
    hinted = states(plain.hidden_KH + 0.5 * torch.randn(30, 8, dtype=torch.float64))
    plain_KV = plain.token_logprobs(ids_KN=every).logps_KN[:, 1:]
    distances = []
    for guidance in (0.0, 0.5, 1.0, 2.0):
        guided = guided_scores(hinted, plain, torch.full((30,), guidance), ids_KN=every, floats=240)
        guided_KV = guided.teacher.logps_KN[:, 1:]
        torch.testing.assert_close(guided_KV.exp().sum(-1), torch.ones(30, dtype=torch.float64))
        distances.append((guided_KV.exp() * (guided_KV - plain_KV)).sum(-1).mean().item())
    torch.testing.assert_close(
        guided_scores(hinted, plain, torch.zeros(30), ids_KN=every).teacher.logps_KN,
        hinted.token_logprobs(ids_KN=every).logps_KN,
    )
    assert distances == sorted(distances)
    assert distances[-1] > 1.5 * distances[0]


def test_guidance_over_different_responses_is_refused() -> None:
    head = torch.nn.Linear(4, 6, bias=False)
    one, other = (
        HiddenStates(
            head=head,
            hidden_KH=torch.zeros(2, 4),
            targets_K=torch.tensor(targets),
            temperature_K=torch.ones(2),
            lengths=(2,),
        )
        for targets in ([1, 2], [1, 3])
    )
    with pytest.raises(ValueError, match="the same response under both prompts"):
        guided_scores(one, other, torch.ones(2))


def test_the_gap_of_a_lesson_falls_as_it_is_learned(
    trainer: Make, draw: Draw, tmp_path: Path
) -> None:
    """Against the definition, over the whole vocabulary."""
    made = trainer("combine", **WIDE, topk=60, learning_rate=1e-2, kl_coef=0.0)
    drawn = draw(made, 3, reward=None, hinted_prompts=HINTED_PROMPT)
    samples = [
        replace(sample, from_teacher=number % 2 == 0, guidance=1.0, temperature=1.0)
        for number, sample in enumerate(drawn)
    ]
    shares = []
    for number in range(12):
        step = made.step(samples, str(tmp_path / str(number)))
        assert step.lesson_gaps.keys() == {sample.turn for sample in samples}
        shares.append(missing_share(list(step.lesson_gaps.values())))
        if number == 0:
            for sample in samples:
                plain = base_distribution(made, sample.prompt_ids, sample)
                hinted = base_distribution(made, HINTED_PROMPT[0], sample)
                teacher = guided_distribution(hinted, plain, 1.0)
                mask = torch.from_numpy(sample.mask.astype(bool))
                effect = (
                    ((teacher.exp() - plain.exp()) * (hinted - plain)).sum(-1)[mask].sum().item()
                )
                assert step.lesson_gaps[sample.turn].effect == pytest.approx(
                    effect, rel=1e-3, abs=1e-3
                )
    assert shares[0] == pytest.approx(1.0, abs=1e-3)
    assert shares[-1] < 0.7 * shares[0]


def test_a_lesson_without_effect_has_no_gap() -> None:
    assert missing_share([]) == 0.0
    assert missing_share([LessonGap(missing=0.0, effect=0.0)]) == 0.0
    assert (
        missing_share([LessonGap(missing=1.0, effect=2.0), LessonGap(missing=0.0, effect=2.0)])
        == 0.25
    )
