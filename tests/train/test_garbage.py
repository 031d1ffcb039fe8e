"""A stream of what makes peers collapse: junk tokens, wrong log-probabilities, equal rewards, rewards that flip.

Whatever comes, a step stays in its trust region, the policy stays near its base, and there is no step on nothing.
Without the bounds all streams end three times as far away or more (docs/concepts/training_safety.md has the figures).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.garbage import BEGIN, END, PAGE, RATE, STEPS, STREAMS, run, turns
from tests.learner.conftest import save_tiny

from openclaw_rl.gates.metric_gates import rejection_reason
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import Sample
from openclaw_rl.settings.load import train_settings
from openclaw_rl.types import EpisodeStep

pytestmark = pytest.mark.system

WHOLE = "repeated tokens, always praised"
"""This stream, which goes furthest without the bounds, runs for as long as in the benchmark; the others for ten steps.

The control, without the bounds, is past the limit after ten steps.
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("base"))


@pytest.mark.parametrize("name", STREAMS)
def test_garbage_stays_within_the_bounds(base: str, tmp_path: Path, name: str) -> None:
    """At thirty times the default learning rate."""
    train = train_settings({"optimizer.learning_rate": RATE})
    outcome = run(base, tmp_path, STREAMS[name], count=STEPS if name == WHOLE else 10)
    assert outcome.steps
    for metrics in outcome.steps:
        assert all(np.isfinite(v) for v in metrics.values())
        assert metrics["kl/step"] <= train.safety.max_step_kl
        assert metrics["gap"] <= train.safety.batch_log_ratio_limit
        assert rejection_reason(metrics, train) is None
    assert all("too stale" in why for why in outcome.refused)
    first, last = outcome.steps[0], outcome.steps[-1]
    assert last["kl"] < 0.13, f"nats per token from the base: {last['kl']:.2f}"
    assert last["entropy"] > 0.5 * first["entropy"], (
        f"{first['entropy']:.2f} -> {last['entropy']:.2f}"
    )


def test_without_bounds_garbage_moves_the_policy_further(base: str, tmp_path: Path) -> None:
    """The control: ten steps on praised junk without them go further than forty with them."""
    free = run(base, tmp_path, STREAMS[WHOLE], count=10, max_step_kl=1e9, kl_coef=0.0)
    assert free.steps[-1]["kl"] > 0.13
    assert max(m["kl/step"] for m in free.steps) > 0.01


def test_spikes_are_masked_and_counted(base: str, tmp_path: Path) -> None:
    outcome = run(base, tmp_path, STREAMS["log-probabilities with spikes of three nats"], count=6)
    assert np.mean([m["masked/gap"] for m in outcome.steps]) > 0.02
    assert all(m["gap/max"] > 2.9 and m["ratio/max"] < 21 for m in outcome.steps)
    assert outcome.left_out > 0, "a reply with many of them is left out as a whole"


def garbage(trainer: LocalTrainer, rng: np.random.Generator) -> dict[str, list[Sample]]:
    """Batches that hold nothing to learn from."""

    def made(reward: float | None, off: float) -> list[Sample]:
        return turns(trainer, rng, lambda rng: reward, junk=False, off=off)

    alike = [
        replace(
            s,
            reward=None,
            episode=EpisodeStep(group="g", episode=f"{n}", step=0, reward=1.0, rewards=(1.0,) * 4),
        )
        for n, s in enumerate(made(None, 0.0))
    ]
    return {
        "cut at the limit, no verdict": made(None, 0.0),
        "the engine's numbers are of another policy": made(1.0, 5.0),
        "each just bearable, together another policy": made(1.0, 0.45),
        "all rollouts alike": alike,
    }


@pytest.mark.parametrize("kind", ["binary", "groups"])
def test_a_batch_without_usable_turns_takes_no_step(base: str, tmp_path: Path, kind: str) -> None:
    rng, train = (
        np.random.default_rng(0),
        train_settings({"safety.max_turn_log_ratio": 0.5, "safety.max_batch_log_ratio": 0.1}),
    )
    method = make_method(train_settings({"method": kind}))
    trainer = LocalTrainer(base, method, train)
    before = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    for stream in garbage(trainer, rng).values():
        result = trainer.step(stream, str(tmp_path / "out"))
        assert result.folder is None
        assert set(result.dropped) == {s.turn for s in stream}
    assert torch.equal(
        before, torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    )


def test_the_documentation_has_a_row_for_every_stream() -> None:
    made = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    assert [line.split("|")[1].strip() for line in made.strip().splitlines()[2:]] == list(STREAMS)
