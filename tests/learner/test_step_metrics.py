"""What is told of a step over several epochs: nothing that went wrong in one of them is lost in the next."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from openclaw_rl.learner.step_metrics import (
    ALL_MASKED,
    ZERO_GRADIENT,
    EpochResult,
    epoch_metrics,
    no_step_reason,
)
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.types import PolicyGradientTerm, Sample

TERM = PolicyGradientTerm(
    name="binary", weight=1.0, advantages=(np.ones(4, np.float32),), masks=(np.ones(4, bool),)
)
FAILS_ONCE = """
from pathlib import Path
armed = Path(__file__).with_name("armed")
def compute_loss(policy_logits, reference_logits, rewards, advantages, config):
    now = armed.exists()
    armed.unlink(missing_ok=True)
    return -(policy_logits * advantages).mean() * (float("nan") if now else 1.0)
"""


def epoch(norm: float, *, total: float = 0.5, **counts: int) -> EpochResult:
    return EpochResult(
        values={"total": total},
        counts={"tokens": 4, "tokens/binary": 4, "live": 4} | counts,
        norm=norm,
    )


def test_epoch_metrics_are_mean_losses_pooled_counts_and_the_largest_norm() -> None:
    metrics = epoch_metrics(
        [epoch(9.0, gap=4), epoch(1.0, total=1.5, gap=1, **{"clipped/binary": 2})], [TERM]
    )
    assert metrics == {
        "loss/total": 1.0,
        "gradient/norm": 9.0,
        "masked/gap": 5 / 8,
        "masked/opsm": 0.0,
        "masked/geometric": 0.0,
        "clipped/binary": 2 / 8,
        "capped/binary": 0.0,
    }


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 1])
def test_non_finite_values_propagate(wrong: float, place: int) -> None:
    for bad, name in ((epoch(wrong), "gradient/norm"), (epoch(1.0, total=wrong), "loss/total")):
        epochs = [epoch(2.0), epoch(2.0)]
        epochs[place] = bad
        assert not math.isfinite(epoch_metrics(epochs, [TERM])[name])
        assert no_step_reason([bad, epoch(0.0, live=0)]) is None, "the gate has to see it"


def test_no_step_is_reported_if_no_epoch_took_one() -> None:
    assert no_step_reason([epoch(0.0, live=0), epoch(0.3, live=0)]) == ALL_MASKED
    assert no_step_reason([epoch(0.0), epoch(0.0, live=0)]) == ZERO_GRADIENT
    assert no_step_reason([epoch(0.0), epoch(0.1)]) is None


def test_a_non_finite_first_epoch_makes_the_step_non_finite(
    trainer: Callable[..., LocalTrainer], draw: Callable[..., list[Sample]], tmp_path: Path
) -> None:
    """The next call is the first epoch's, the one after it the second's."""
    (tmp_path / "loss.py").write_text(FAILS_ONCE)
    made = trainer("binary", loss_path=str(tmp_path / "loss.py"), epochs=2)
    samples = draw(made, 0, 1, reward=1.0)
    (tmp_path / "armed").touch()
    metrics = made.step(samples, str(tmp_path / "out")).metrics
    assert not (tmp_path / "armed").exists()
    assert math.isnan(metrics["gradient/norm"])
    assert math.isnan(metrics["loss/total"])
