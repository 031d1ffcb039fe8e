"""How long passes are expected to take, how large they become, and that their size does not change a step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.learner.conftest import save_tiny

from openclaw_rl.common import progress
from openclaw_rl.common.progress import Activity, WorkKind
from openclaw_rl.learner.forward.pass_speed import (
    MAX_PASS_SECONDS,
    MIN_PASS_TOKENS,
    TRAIN_COST,
    PassSpeed,
)
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import Sample
from openclaw_rl.settings.load import ModelConfig, train_settings

Make = Callable[..., LocalTrainer]
Draw = Callable[..., list[Sample]]
rates = st.floats(1e-6, 10.0)  # seconds per token


class FixedSpeed(PassSpeed):
    """A machine on which a training pass takes `rate` seconds for each token, whatever was measured."""

    def __init__(self, rate: float) -> None:
        super().__init__(is_measured=True)
        self._rate = rate

    def expected_seconds(self, kind: WorkKind, tokens: int) -> float | None:
        return self._rate * tokens


def speed_of(rate: float, kind: WorkKind = WorkKind.TRAIN) -> PassSpeed:
    speed = PassSpeed(is_measured=True)
    speed.record_pass(kind, 100, processor=100 * rate, clock=300 * rate)
    return speed


@given(rate=rates, tokens=st.integers(MIN_PASS_TOKENS + 1, 10**6))
def test_a_pass_is_limited_to_half_a_minute(rate: float, tokens: int) -> None:
    assert speed_of(rate).fits(tokens) == (
        rate * tokens <= MAX_PASS_SECONDS or tokens <= MIN_PASS_TOKENS
    )


@given(rate=rates, tokens=st.integers(1, 10**5))
def test_an_unmeasured_training_pass_counts_as_three_scoring_passes(
    rate: float, tokens: int
) -> None:
    speed = speed_of(rate, WorkKind.SCORE)
    assert speed.expected_seconds(WorkKind.TRAIN, tokens) == pytest.approx(
        TRAIN_COST * rate * tokens
    )
    speed.record_pass(WorkKind.TRAIN, 10, processor=10 * rate, clock=10 * rate)
    assert speed.expected_seconds(WorkKind.TRAIN, tokens) == pytest.approx(rate * tokens)


@given(rate=rates, load=st.floats(1.0, 50.0))
def test_a_load_does_not_make_passes_smaller(rate: float, load: float) -> None:
    """Only the time until a person sees the end grows with it."""
    speed = PassSpeed(is_measured=True)
    speed.record_pass(WorkKind.TRAIN, 100, processor=100 * rate, clock=100 * rate * load)
    assert speed.expected_seconds(WorkKind.TRAIN, 1) == pytest.approx(rate)
    assert speed.remaining_seconds(WorkKind.TRAIN, 1) == pytest.approx(rate * load)


def test_threads_make_a_pass_faster_than_their_processor_time_says() -> None:
    speed = PassSpeed(is_measured=True)
    speed.record_pass(WorkKind.TRAIN, 100, processor=80.0, clock=10.0)
    assert speed.expected_seconds(WorkKind.TRAIN, 100) == pytest.approx(10.0)


def test_on_a_gpu_nothing_is_measured_and_the_settings_decide() -> None:
    speed = PassSpeed(is_measured=False)
    speed.record_pass(WorkKind.TRAIN, 1, processor=1000.0, clock=1000.0)
    assert speed.fits(10**9)
    assert speed.expected_seconds(WorkKind.TRAIN, 1) is None


def gradients_of(trainer: LocalTrainer) -> torch.Tensor:
    found = [p.grad for p in trainer._optimizer.master_tensors if p.grad is not None]
    return torch.cat([gradient.flatten() for gradient in found])


@pytest.mark.parametrize("method", ["combine", "binary", "sdft"])
def test_the_gradient_of_a_step_is_the_same_at_every_speed(
    draw: Draw, tmp_path: Path, method: str
) -> None:
    """To 1e-9 in float64: one pass on a fast machine, one row in each pass on a slow one."""
    path = save_tiny(tmp_path / "model")
    train = train_settings({"method": method, "clip_grad": 1e9, "max_gap": 9.0})
    found = []
    passes = []
    batch: list[Sample] = []
    for rate in (1e-9, MAX_PASS_SECONDS / 70, 1e9):
        trainer = LocalTrainer(path, make_method(train), train, ModelConfig(dtype="float64"))
        batch = batch or draw(trainer, 3, 12)
        trainer._runner.speed = FixedSpeed(rate)
        result = trainer.step(batch, str(tmp_path / f"{rate}"))
        assert result.folder is not None
        rows = trainer._scorer.score_batch(batch, trainer._frame.method_for(batch))[0].rows
        passes.append(len(trainer._runner.group_rows(rows)))
        found.append(gradients_of(trainer))
    assert passes[0] == 1
    assert passes[0] < passes[1] <= passes[2]
    for gradient in found[1:]:
        assert (gradient - found[0]).norm() <= 1e-9 * found[0].norm()


def test_a_step_reports_its_passes_and_how_long_they_take(
    trainer: Make, draw: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trainer(learning_rate=1e-2, micro_tokens=16)
    batch = draw(made, 0, 8)
    reported: list[Activity] = []
    report = progress.set_activity

    def report_and_keep(activity: Activity | None) -> None:
        report(activity)
        if activity is not None:
            reported.append(activity)

    monkeypatch.setattr(progress, "set_activity", report_and_keep)
    made.step(batch, str(tmp_path / "step"))
    for kind in (WorkKind.SCORE, WorkKind.TRAIN):
        passes = [activity for activity in reported if activity.kind is kind]
        total = passes[0].total
        assert total > 1
        assert [activity.number for activity in passes[:total]] == list(range(1, total + 1))
        assert all(activity.expected is not None and activity.expected > 0 for activity in passes)
        # The speed is measured anew at each pass, so two of them cannot be compared.
        for activity in passes[:total]:
            assert activity.remaining is not None
            assert activity.remaining >= (activity.expected or 0.0)
        assert (passes[0].remaining or 0.0) > (passes[0].expected or 0.0)
    assert progress.current_activity() is None


def test_a_model_has_a_speed_before_its_first_step(trainer: Make) -> None:
    """So the first pass of a large model is not too long already."""
    made = trainer()
    assert (made._runner.speed.expected_seconds(WorkKind.TRAIN, 100) or 0.0) > 0
