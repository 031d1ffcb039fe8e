"""What a replay is to the trainer: all but what was sampled is computed anew, and the averages know it already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.loss.scored_batch import plain_sequence
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.combine import CombinedMethod
from openclaw_rl.methods.types import BatchLogprobs, Sample

Make = Callable[..., LocalTrainer]
Draw = Callable[..., list[Sample]]


def again(samples: list[Sample]) -> list[Sample]:
    return [replace(s, replay=True) for s in samples]


def test_a_replay_is_scored_again(
    trainer: Make, draw: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evidence of its second step: the policy as it is by then, and base and teachers, by a pass of their own."""
    seen: list[BatchLogprobs] = []
    plain = CombinedMethod.loss_terms

    def watched(self: CombinedMethod, evidence: BatchLogprobs, memory: dict[str, object]) -> object:
        seen.append(evidence)
        return plain(self, evidence, memory)

    monkeypatch.setattr(CombinedMethod, "loss_terms", watched)
    made = trainer(learning_rate=1e-2, max_step_kl=1.0, max_gap=9.0)
    batch = draw(made, 0, reward=1.0)
    made.step(batch, str(tmp_path / "1"))
    now = made.logprobs([plain_sequence(s) for s in batch])
    result = made.step([*draw(made, 1, reward=-1.0), *again(batch)], str(tmp_path / "2"))
    second = seen[-1]
    for sample, logp in zip(batch, now, strict=True):
        i = next(i for i, s in enumerate(second.samples) if s.turn == sample.turn)
        np.testing.assert_allclose(second.student_logprobs[i], logp, atol=1e-5)
        assert np.abs(second.student_logprobs[i] - sample.logprobs).max() > 1e-4, (
            "the policy has moved since"
        )
        hinted = [TokenSequence(prompt_ids=h, response_ids=sample.response_ids, temperature=sample.temperature)
                  for h in sample.hinted_prompts]  # fmt: skip
        for actual, logps in zip(
            second.teacher_logprobs[i], made.logprobs(hinted, base=True), strict=True
        ):
            np.testing.assert_allclose(actual, logps, atol=1e-5)
    gaps = np.concatenate([
        np.abs(logp.numpy() - s.logprobs)[s.mask] for s, logp in zip(batch, now, strict=True)
    ])  # fmt: skip
    assert result.metrics["gap/replays"] == pytest.approx(gaps.mean(), rel=1e-3)
    assert "gap/replays" not in made.step(draw(made, 2), str(tmp_path / "3")).metrics


def test_averages_count_each_turn_once(trainer: Make, draw: Draw, tmp_path: Path) -> None:
    """Baseline and reply length after a batch with replays are what they are without; the step is another one."""
    alone, beside = trainer(), trainer()
    first = draw(alone, 0, reward=1.0)
    for made in (alone, beside):
        made.step(first, str(tmp_path / f"{id(made)}-1"))
    fresh = draw(alone, 1, reward=-1.0)
    without = alone.step(fresh, str(tmp_path / "without"))
    with_ = beside.step([*fresh, *again(first)], str(tmp_path / "with"))
    assert with_.memory == without.memory
    assert with_.metrics["turns"] == without.metrics["turns"] + len(first)
    assert with_.digest != without.digest


def test_replays_alone_leave_the_averages_as_they_were(
    trainer: Make, draw: Draw, tmp_path: Path
) -> None:
    """Also those of a policy that knows none yet."""
    made = trainer(kl_coef=0.0)
    result = made.step(again(draw(made, 0, reward=1.0)), str(tmp_path / "out"))
    assert result.folder is not None
    assert result.memory.keys() == {"baseline"}


def test_warm_up_counts_each_turn_once(trainer: Make, draw: Draw, tmp_path: Path) -> None:
    made = trainer(warmup_samples=24)
    batch = draw(made, 0, 6, reward=1.0)
    rates = [
        made.step([*draw(made, n, 6, reward=-1.0), *extra], str(tmp_path / str(n))).metrics[
            "learning_rate"
        ]
        for n, extra in ((1, []), (2, again(batch)), (3, []))
    ]
    assert rates == pytest.approx([1.5e-3 * (1 + 6 * n) / 24 for n in range(3)])


def test_a_replay_that_is_too_stale_is_left_out(trainer: Make, draw: Draw, tmp_path: Path) -> None:
    made = trainer(max_gap=0.5)
    stale = [replace(s, logprobs=s.logprobs - 0.6, replay=True) for s in draw(made, 0, reward=1.0)]
    fresh = draw(made, 1, reward=1.0)
    result = made.step([*fresh, *stale], str(tmp_path / "1"))
    assert set(result.dropped) == {s.turn for s in stale}
    assert result.metrics["dropped/stale"] == 0, (
        "it has trained, and is none of those that never will"
    )
    assert all(
        "above train.safety.max_turn_log_ratio" in why.detail for why in result.dropped.values()
    )
    assert torch.isfinite(torch.tensor(result.metrics["loss/total"]))
