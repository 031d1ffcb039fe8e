"""A learning rate that is too low is named, with the measured KL of its steps."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.train.test_checkpoints import Fill, head_of

from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import STARTER, Config, TrackConfig, train_settings
from openclaw_rl.status.diagnose import Diagnosis, find_diagnoses
from openclaw_rl.store.db import Store
from openclaw_rl.train.context import LoopParts
from openclaw_rl.train.learning_rate import CHECKED_STEPS, find_low_rate
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.train.tracking import MetricsTracker

pytestmark = pytest.mark.system

TrainSteps = Callable[..., dict[str, Diagnosis]]


@pytest.fixture
def train_steps(store: Store, builder: SampleBuilder, fill: Fill, tmp_path: Path) -> TrainSteps:
    """Train an adapter on the starter policy for some steps, and return the diagnoses of its home by name."""

    def run(count: int = CHECKED_STEPS, **optimizer: Any) -> dict[str, Diagnosis]:
        train = train_settings(
            {"method": "binary", "max_gap": 99.0, "batch.min_turns": 2, "optimizer": optimizer}
        )
        config = Config(home=str(tmp_path), train=train)
        trainer = LocalTrainer(str(ModelFiles.from_path(STARTER).folder), make_method(train), train)
        tracker = MetricsTracker(TrackConfig(), config.logs_dir, run="r", settings={})
        loop = TrainLoop(
            store, trainer, builder, train, tmp_path / "policies", LoopParts(tracker=tracker)
        )
        for _ in range(count):
            fill(store, 1, score=1, words="Paris.")
            fill(store, 1, score=-1, words="Certainly. The capital of France is Paris.")
            assert loop.run_once()
        loop.close()
        with store.read() as conn:
            return {found.name: found for found in find_diagnoses(config, conn, now=0.0)}

    return run


def test_a_rate_without_effect_is_named_with_its_kl(
    train_steps: TrainSteps, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    diagnoses = train_steps(CHECKED_STEPS + 1, learning_rate=1e-6)
    (line,) = [r.getMessage() for r in caplog.records if "changed the policy by" in r.getMessage()]
    logged = re.search(r"by (\S+) nats per token or less", line)
    assert logged is not None
    assert head_of(store).metrics["kl/step"] <= float(logged.group(1)) * 1.1 < 1e-7
    found = diagnoses["the learning rate is too low"]
    assert found.evidence.startswith(
        "kl/step: at learning rate 1e-06, each of the newest 5 steps changed the policy"
    )
    assert "suits whole models" in caplog.text


def test_the_advised_rate_and_the_default_are_not_named(
    train_steps: TrainSteps, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    advised = train_steps(learning_rate=1e-6)["the learning rate is too low"].settings[
        "train.optimizer.learning_rate"
    ]
    caplog.clear()
    for given, least in (({"learning_rate": advised}, 1e-5), ({}, 1e-4)):
        assert "the learning rate is too low" not in train_steps(**given)
        assert head_of(store).metrics["kl/step"] > least
    assert "changed the policy" not in caplog.text
    assert "suits whole models" not in caplog.text


def test_steps_of_a_warm_up_and_single_steps_do_not_count() -> None:
    small = [{"learning_rate": 1e-6 * n, "kl/step": 1e-12} for n in range(1, CHECKED_STEPS + 1)]
    assert find_low_rate(small) is None
    level = [{"learning_rate": 1e-6, "kl/step": 1e-12}] * CHECKED_STEPS
    assert find_low_rate(level) is not None
    assert find_low_rate(level[1:]) is None
    assert find_low_rate([*level, {"learning_rate": 1e-6, "kl/step": 1e-6}]) is None
    assert find_low_rate([{"learning_rate": 1e-3, "kl/step": 1e-12}] * CHECKED_STEPS) is None, (
        "not because of the rate"
    )


def test_a_step_that_changes_nothing_raises_the_rate_a_hundredfold() -> None:
    low = find_low_rate([{"learning_rate": 2e-6, "kl/step": 0.0}], checked=1)
    assert low is not None
    assert low.better_rate == 2e-4
