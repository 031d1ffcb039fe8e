"""The train loop with Tinker as the trainer: each turn in one version, rollback, the budget; and its settings."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.learner.tinker.training_sdk import MODEL, TrainingSdk
from tests.store.deaths import DEATH, die, run_in_process

from openclaw_rl.errors import ConfigError
from openclaw_rl.gates.metric_gates import metrics_are_finite
from openclaw_rl.learner.tinker import training_session
from openclaw_rl.learner.tinker.trainer import TinkerTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.practice.make_practice import no_practice_reason
from openclaw_rl.settings.load import from_flat
from openclaw_rl.settings.unused import unused_settings
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.workers.attempts import MAX_DEATHS
from openclaw_rl.tinker.service import TinkerService
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.rollback import apply_rollback, plan_rollback
from openclaw_rl.train.sample_builder import SampleBuilder

Fill = Callable[..., list[str]]
SETTINGS = {
    "engine.backend": "tinker",
    "train.trainer": "tinker",
    "tinker.model": MODEL,
    "tinker.api_key": "tml-x",
    "gate.kind": "numbers",
    "train.method": "binary",
    "train.batch.min_turns": 4,
    "train.batch.max_turns": 4,
    "train.safety.max_turn_log_ratio": 100.0,  # no policy sampled these replies
    "train.loss.token_ratio_min": 1e-9,
    "train.loss.token_ratio_max": 1e9,
    "train.safety.gate_grad_norm": 1e9,
    "train.safety.gate_kl": 1e9,
}
AT_FIREWORKS = {
    "fireworks.api_key": "fw",
    "fireworks.account": "me",
    "fireworks.base_model": "accounts/fireworks/models/m",
    "engine.max_context": 64,
}


class TinkerWorld:
    """A train loop whose steps a double of the service takes."""

    def __init__(self, store: Store, builder: SampleBuilder, folder: Path, **more: Any) -> None:
        self.config = from_flat(SETTINGS | {"home": str(folder)} | more)
        self.store, self.sdk = store, TrainingSdk()
        service = TinkerService(self.config, lambda: self.sdk)
        trainer = TinkerTrainer(self.config, make_method(self.config.train), service)
        self.loop = TrainLoop(store, trainer, builder, self.config.train, self.config.policies_dir)

    def run_until(self, version: int) -> None:
        for _ in range(10):
            if self.head() < version:
                self.loop.run_once()
        assert self.head() == version, self.loop.note

    def head(self) -> int:
        with self.store.read() as conn:
            return policies.head(conn).version

    def used(self) -> dict[int, list[str]]:
        with self.store.read() as conn:
            line = policies.lineage(conn, policies.head(conn).version)
            return {
                v: sorted(use.turn for use in policies.uses_of_version(conn, v)) for v in line if v
            }

    def state_of(self, version: int) -> str:
        with self.store.read() as conn:
            found = policies.get(conn, version)
        assert found is not None
        state: str = json.loads((Path(str(found.path)) / "tinker_version.json").read_text())[
            "state"
        ]
        return state


@pytest.fixture
def make_world(
    store: Store, builder: SampleBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., TinkerWorld]]:
    monkeypatch.setattr(training_session, "RETRY_SECONDS", 0.0)
    made: list[TinkerWorld] = []

    def make(**more: Any) -> TinkerWorld:
        made.append(TinkerWorld(store, builder, tmp_path, **more))
        return made[-1]

    yield make
    for world in made:
        world.loop.close()


def test_each_turn_is_in_one_version_and_a_lost_answer_frees_the_batch(
    make_world: Callable[..., TinkerWorld], fill: Fill
) -> None:
    world = make_world()
    given = fill(world.store, 8)
    world.sdk.loses["optim_step"] = ConnectionResetError("cut off")
    assert not world.loop.run_once()
    assert world.loop.note.startswith(
        "waiting for the trainer: the Tinker service does not answer (cut off)"
    )
    assert world.head() == 0
    world.run_until(2)
    used = world.used()
    assert sorted(turn for turns in used.values() for turn in turns) == sorted(given)
    assert world.sdk.restored[-1] == world.state_of(1), (
        "the second step starts from the first version's checkpoint"
    )


def test_a_worker_that_is_killed_in_a_batch_loses_no_turn(
    store: Store, builder: SampleBuilder, fill: Fill, tmp_path: Path
) -> None:
    """The service computes the step, so the turns are not why the worker ends. At home, two kills set them aside."""
    given = fill(store, 4)
    short = {"train.safety.lease_ttl": 0.5}

    def train_until_killed() -> None:
        with Store.open(store.path) as opened:
            world = TinkerWorld(opened, builder, tmp_path, **short)
            world.sdk.changes["forward"] = lambda answer: die()
            end = time.monotonic() + 240
            while time.monotonic() < end:
                world.loop.run_once()

    for _ in range(2 * MAX_DEATHS):
        assert run_in_process(train_until_killed) == DEATH
    world = TinkerWorld(store, builder, tmp_path, **short)
    end = time.monotonic() + 240
    while world.head() < 1:
        assert time.monotonic() < end, world.loop.note
        world.loop.run_once()
    world.loop.close()
    assert world.used() == {1: sorted(given)}
    with store.read() as conn:
        assert [policy.version for policy in policies.list_all(conn)] == [0, 1], (
            "no batch counted as failed"
        )


def test_after_a_rollback_the_next_step_starts_from_the_target(
    make_world: Callable[..., TinkerWorld], fill: Fill
) -> None:
    world = make_world()
    fill(world.store, 8)
    world.run_until(2)
    with world.store.write() as conn:
        apply_rollback(conn, plan_rollback(conn, 1), learn_again=False, reason="a test")
    fill(world.store, 4)
    world.run_until(3)
    assert world.sdk.restored[-1] == world.state_of(1)
    assert set(world.used()) == {1, 3}


def test_at_the_budget_the_loop_waits_and_says_why(
    make_world: Callable[..., TinkerWorld], fill: Fill, tmp_path: Path
) -> None:
    world = make_world()
    fill(world.store, 8)
    world.run_until(1)
    sent = json.loads((tmp_path / "tinker_usage.json").read_text())["training_tokens"]
    world.loop.close()
    world = make_world(**{"tinker.budget_tokens": sent + 1})
    for _ in range(3):
        world.loop.run_once()
    assert world.head() == 1
    assert (
        f"tinker.budget_tokens ({sent + 1}) is reached: training has sent {sent} tokens"
        in world.loop.note
    )
    assert json.loads((tmp_path / "tinker_usage.json").read_text()) == {"training_tokens": sent}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"engine.backend": "fireworks", **AT_FIREWORKS}, "Set engine.backend to tinker"),
        ({"train.method": "sdpo"}, "need top log-probabilities, which it does not return"),
        ({"train.method": "sdft"}, "need top log-probabilities"),
        ({"train.method": "opd", "train.distill.target": "student_topk"}, "target student_topk"),
        ({"train.method": "opd", "train.distill.hint_choice": "overlap"}, "hint_choice overlap"),
        ({"gate.kind": "probes"}, "Set gate.kind to numbers"),
        ({"train.finetune": "full"}, "Set train.finetune to lora"),
        ({"train.batch.epochs": 2}, "Set train.batch.epochs to 1"),
        (
            {"train.method": "opd", "train.distill.teacher": "ema"},
            "Set train.distill.teacher to base",
        ),
        (
            {"train.method": "opd", "train.distill.teacher_temperature": 2.0},
            "Leave train.distill.teacher_temperature",
        ),
        ({"train.loss.path": "loss.py"}, "Leave out train.loss.path"),
        ({"train.ranks": 2}, "Leave out train.ranks"),
        ({"train.checkpoint.save_dir": "out"}, "Leave out train.checkpoint.save_dir"),
    ],
)
def test_what_tinker_cannot_train_is_refused_in_one_line(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        from_flat(SETTINGS | given)
    assert "\n" not in str(caught.value)


def test_settings_of_the_local_trainer_alone_are_named_and_those_of_the_formula_are_not() -> None:
    config = from_flat(SETTINGS)
    given = dict.fromkeys(
        ("train.optimizer.learning_rate", "train.loss.kl_coef", "train.seed"), "flags"
    )
    assert unused_settings(config, given) == []
    given = dict.fromkeys(("train.lora.alpha", "train.lora.dropout", "train.compile"), "flags")
    assert len(unused_settings(config, given)) == 2, "one for each rule"


def test_lessons_are_not_practised_and_the_norm_of_the_gradient_may_be_missing() -> None:
    config = from_flat(SETTINGS | {"train.method": "combine"})
    assert "train.trainer tinker" in no_practice_reason(config, make_method(config.train))
    metrics = {"loss/total": 0.1, "kl": 0.0, "kl/step": 0.0}
    assert metrics_are_finite(metrics, config.train) is None
    assert (
        str(metrics_are_finite({"loss/total": 0.1}, config.train))
        == "kl is None, expected a finite number"
    )
    assert "gradient/norm" in str(metrics_are_finite(metrics, from_flat({}).train))
