"""The factor on the learning rate that a lineage carries from step to step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.gates.metric_gates import rejection_reason
from openclaw_rl.learner.step_size import MIN_STEP_SCALE, next_rate_scale
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.types import Sample
from openclaw_rl.settings.load import train_settings

Make = Callable[..., LocalTrainer]
Draw = Callable[..., list[Sample]]
SCALES = st.integers(0, 8).map(lambda halvings: 2.0**-halvings)


@given(scale=SCALES, kept=SCALES, moved=st.floats(0, 1))
def test_the_scale_stays_within_bounds(scale: float, kept: float, moved: float) -> None:
    after = next_rate_scale(scale, remaining=kept, moved=moved, bound=0.1)
    assert MIN_STEP_SCALE <= after <= 1
    if kept < 1:
        assert after == max(scale * kept, MIN_STEP_SCALE)
    else:
        assert after == (min(2 * scale, 1) if moved < 0.025 else scale)


@given(best=st.floats(MIN_STEP_SCALE * 2, 0.9), start=SCALES)
def test_the_scale_converges_to_within_a_factor_of_two(best: float, start: float) -> None:
    """Where the distance grows with the square of the rate."""
    scale = start
    for _ in range(20):
        kept = 1.0
        while (scale * kept / best) ** 2 > 1:
            kept /= 2
        scale = next_rate_scale(scale, remaining=kept, moved=(scale * kept / best) ** 2, bound=1.0)
    assert best / 2 <= scale <= best


def test_a_step_of_practice_has_a_bound_of_its_own(
    trainer: Make, draw: Draw, tmp_path: Path
) -> None:
    """And a size of its own: a step on turns after it begins where the last one on turns ended."""
    made = trainer(
        "combine",
        learning_rate=3e-2,
        max_step_kl=0.002,
        max_gap=9.0,
        max_batch_gap=9.0,
        topk=7,
        **{"safety.max_practice_kl": 0.0005},
    )
    hinted = draw(made, 0, reward=None, hinted_prompts=(np.array([5, 6, 7], np.int32),))
    practice = [replace(sample, guidance=1.0) for sample in hinted]
    first = made.step(practice, str(tmp_path / "first")).metrics
    assert first["kl/step"] <= 0.0005
    assert first["step/scale"] < 1
    turns = made.step(draw(made, 1), str(tmp_path / "turns")).metrics
    assert turns["learning_rate"] == 3e-2
    assert 0.0005 < turns["kl/step"] <= 0.002
    refused = rejection_reason(
        first | {"kl/step": 0.001}, train_settings({"safety.max_practice_kl": 0.0005})
    )
    assert "above train.safety.max_practice_kl 0.0005" in str(refused)


def test_a_step_begins_at_the_size_of_the_last_one(
    trainer: Make, draw: Draw, tmp_path: Path
) -> None:
    """Also after a restart: the size is stored with the version."""
    settings = {"learning_rate": 3e-2, "max_step_kl": 0.001, "max_gap": 9.0, "max_batch_gap": 9.0}
    made = trainer(**settings)
    first = made.step(draw(made, 0), str(tmp_path / "first"))
    assert first.metrics["step/scale"] < 1
    assert first.metrics["learning_rate"] == 3e-2
    batch = draw(made, 1)
    second = made.step(batch, str(tmp_path / "second"))
    assert second.metrics["learning_rate"] == 3e-2 * first.metrics["step/scale"]
    restarted = trainer(**settings)
    restarted.load(folder=first.folder, method_state=first.memory)
    again = restarted.step(batch, str(tmp_path / "again"))
    assert again.metrics["learning_rate"] == second.metrics["learning_rate"]
    assert again.digest == second.digest
    restarted.load(folder=None, method_state={})
    assert (
        restarted.step(draw(restarted, 0), str(tmp_path / "base")).metrics["learning_rate"] == 3e-2
    )
