"""Settings that people bring along, and what they change of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from openclaw_rl.errors import ConfigError
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import Sample
from openclaw_rl.settings.load import from_flat

Make = Callable[..., LocalTrainer]
Draw = Callable[..., list[Sample]]


def logp(made: LocalTrainer, prompt: np.ndarray, sample: Sample, temperature: float) -> np.ndarray:
    """[R] by transformers alone."""
    ids = torch.from_numpy(np.concatenate([prompt, sample.response_ids]).astype(np.int64))[None]
    with torch.no_grad():
        logits = made.causal(input_ids=ids).logits[0, len(prompt) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1).gather(-1, ids[0, len(prompt) :, None])[:, 0].numpy()


@pytest.mark.parametrize("times", [0.7, 2.0])
def test_teacher_and_student_are_compared_at_one_temperature(
    trainer: Make, draw: Draw, times: float
) -> None:
    made = trainer("opd", teacher_temperature=times)
    samples = [s for s in draw(made, 3) if s.hinted_prompts]
    assert samples
    batch, _ = made._scorer.score_batch(samples, make_method(made._train))
    evidence = batch.batch_logprobs()
    for sample, student, teachers in zip(
        samples, evidence.student_logprobs, evidence.teacher_logprobs, strict=True
    ):
        warm = sample.temperature * times
        assert student == pytest.approx(logp(made, sample.prompt_ids, sample, warm), abs=1e-4)
        for prompt, teacher in zip(sample.hinted_prompts, teachers, strict=True):
            assert teacher == pytest.approx(logp(made, prompt, sample, warm), abs=1e-4)
    for sample, before in zip(
        samples, batch.student, strict=True
    ):  # what is measured of the step stays as it was
        assert before.numpy() == pytest.approx(
            logp(made, sample.prompt_ids, sample, sample.temperature), abs=1e-4
        )


def test_an_empty_hint_gives_no_gradient_at_any_temperature(trainer: Make, draw: Draw) -> None:
    made = trainer("opd", teacher_temperature=3.0)
    batch = [replace(s, hinted_prompts=(s.prompt_ids,)) for s in draw(made, 0)]
    (term,) = made._frame._method.loss_terms(
        made._scorer.score_batch(batch, made._frame._method)[0].batch_logprobs(), {}
    )
    assert max(float(np.abs(a).max()) for a in term.advantages) < 1e-5


@pytest.mark.parametrize(
    "more", [{"train.method": "sdpo"}, {"train.distill.target": "student_topk"}]
)
def test_a_teacher_temperature_with_top_k_is_refused(more: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="is for the token that was sampled"):
        from_flat({"train.distill.teacher_temperature": 0.5} | more)


def test_accumulation_changes_only_the_number_of_passes(
    trainer: Make, draw: Draw, tmp_path: Path
) -> None:
    norms, passes = [], []
    for parts in (1, 3):
        made = trainer("binary", accumulation=parts)
        batch = draw(made, 1, reward=1.0)
        passes.append(
            len(
                made._runner.group_rows(
                    made._scorer.score_batch(batch, made._frame._method)[0].rows
                )
            )
        )
        norms.append(made.step(batch, str(tmp_path / str(parts))).metrics["gradient/norm"])
    assert passes == [1, 3]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
