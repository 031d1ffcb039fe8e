"""Another program takes the steps: it gets each turn in one batch, and what it does not acknowledge is free again."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openclaw_rl.errors import ConfigError
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import Sample
from openclaw_rl.other_trainers.batch_stream import BatchStream, StreamEnded, TurnBatch
from openclaw_rl.other_trainers.external_trainer import ExternalTrainer
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import STARTER, Config, from_flat
from openclaw_rl.settings.unused import unused_settings
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder

Fill = Callable[..., list[str]]
BASE = ModelFiles.from_path(STARTER).folder
SETTINGS = {
    "train.trainer": "external",
    "gate.kind": "numbers",
    "train.method": "binary",
    "train.batch.min_turns": 4,
    "train.batch.max_turns": 4,
    "practice.enabled": False,
}


class World:
    """A train loop whose trainer is another program."""

    def __init__(
        self, store: Store, builder: SampleBuilder, folder: Path, settings: dict[str, Any] | None = None
    ) -> None:
        self.config = from_flat(SETTINGS | {"home": str(folder)} | (settings or {}))
        self.store, self._builder = store, builder
        self.trainer, self.loop = self.start()

    def start(self) -> tuple[ExternalTrainer, TrainLoop]:
        trainer = ExternalTrainer(self.config, str(BASE))
        return trainer, TrainLoop(self.store, trainer, self._builder, self.config.train, self.config.policies_dir)

    def close(self) -> None:
        self.loop.close()
        self.trainer.close()

    def in_background(self) -> Background:
        return Background(self.loop)

    def used(self) -> dict[int, list[str]]:
        """The turns that each version of the head's lineage was trained on."""
        with self.store.read() as conn:
            line = policies.lineage(conn, policies.head(conn).version)
            return {v: [use.turn for use in policies.uses_of_version(conn, v)] for v in line if v}


class Background:
    """Runs the loop in a thread while the block runs, as the train worker does."""

    def __init__(self, loop: TrainLoop) -> None:
        self._loop, self._stop = loop, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._loop.run_once():
                time.sleep(0.02)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def world(store: Store, builder: SampleBuilder, tmp_path: Path) -> Iterator[World]:
    made = World(store, builder, tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def local() -> LocalTrainer:
    """The own trainer, which here stands in the other program."""
    bounds = {"train.safety.max_turn_log_ratio": 100.0, "train.safety.max_batch_log_ratio": 100.0}
    config = from_flat(SETTINGS | bounds | {"train.trainer": "local"})
    return LocalTrainer(str(BASE), make_method(config.train), config.train, config.model)


def to_sample(row: dict[str, Any]) -> Sample:
    arrays = {
        "prompt_ids": np.array(row["prompt_ids"], np.int32),
        "response_ids": np.array(row["response_ids"], np.int32),
        "logprobs": np.array(row["logprobs"], np.float32),
        "mask": np.array(row["mask"], np.bool_),
        "hinted_prompts": tuple(np.array(ids, np.int32) for ids in row["hinted_prompts"]),
    }
    return Sample(**row | arrays)


def take_step(local: LocalTrainer, batch: TurnBatch) -> None:
    if batch.load is not None:
        local.load(folder=batch.load.folder, memory={})
    Path(batch.folder).rmdir()
    samples = [to_sample(row) for row in batch.rows]
    sampled = zip(samples, local.score(samples), strict=True)  # the replies were not really sampled
    result = local.step([replace(sample, logprobs=logprobs) for sample, logprobs in sampled], batch.folder)
    assert result.folder is not None


def test_each_turn_is_in_one_batch_and_the_rows_are_what_the_store_holds(
    world: World,
    local: LocalTrainer,
    fill: Fill,
) -> None:
    given = fill(world.store, 8)
    with world.in_background(), BatchStream.connect(world.config.home_dir) as stream:
        assert stream.welcome["base"] == str(BASE)
        batches = iter(stream)
        kept, seen = [], []
        for _ in range(2):
            batch = next(batches)
            take_step(local, batch)
            kept.append(batch.acknowledge({"loss/total": 0.5}))
            assert batch.acknowledge({"loss/total": float("nan")}), "a second time counts for nothing"
            seen.append([row["turn"] for row in batch.rows])
            assert batch.rows[0]["logprobs"] == [-1.0] * len(batch.rows[0]["response_ids"])
    assert kept == [True, True]
    assert seen == [given[:4], given[4:]]
    assert world.used() == {1: given[:4], 2: given[4:]}
    with world.store.read() as conn:
        assert policies.head(conn).metrics["loss/total"] == 0.5


def test_a_batch_that_is_not_acknowledged_is_free_again(world: World, local: LocalTrainer, fill: Fill) -> None:
    given = fill(world.store, 4)
    with world.in_background():
        with BatchStream.connect(world.config.home_dir) as stream:
            assert [row["turn"] for row in next(iter(stream)).rows] == given
        with BatchStream.connect(world.config.home_dir) as stream:
            batch = next(iter(stream))
            assert batch.load is not None, "a new program has no weights"
            take_step(local, batch)
            assert batch.acknowledge()
    assert world.used() == {1: given}
    assert len(list(world.config.policies_dir.iterdir())) == 1, "the folder of the lost batch is removed"


def test_a_killed_program_loses_nothing(world: World, local: LocalTrainer, fill: Fill) -> None:
    given = fill(world.store, 4)
    words = (
        "import sys, time; from openclaw_rl.other_trainers.batch_stream import BatchStream;"
        "next(iter(BatchStream.connect(sys.argv[1]))); print('has it', flush=True); time.sleep(60)"
    )
    with world.in_background():
        with subprocess.Popen(
            [sys.executable, "-c", words, str(world.config.home_dir)], stdout=subprocess.PIPE, env=dict(os.environ)
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"has it\n"
            process.kill()
        with BatchStream.connect(world.config.home_dir) as stream:
            batch = next(iter(stream))
            take_step(local, batch)
            assert batch.acknowledge()
    assert world.used() == {1: given}


def test_weights_that_a_bound_refuses_are_not_kept(world: World, local: LocalTrainer, fill: Fill) -> None:
    fill(world.store, 4)
    with world.in_background(), BatchStream.connect(world.config.home_dir) as stream:
        batches = iter(stream)
        batch = next(batches)
        take_step(local, batch)
        assert not batch.acknowledge({"loss/total": float("nan")})
        assert not batch.acknowledge({"loss/total": 0.5}), "what was refused stays refused"
        again = next(batches)
        assert again.load is not None
        assert again.load.folder is None, "back to the weights before"
        assert len(again.rows) < 4, "a part of the batch, to find the turn at fault"
        again.refuse("enough")
    assert world.used() == {}


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda folder: None, "wrote no weights"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "has no adapter_model.safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"0"), "train.finetune says an adapter"),
        (
            lambda folder: [
                (folder / "adapter_config.json").write_text('{"r": 64}'),
                (folder / "adapter_model.safetensors").write_bytes(b"0"),
            ],
            "the adapter has rank 64",
        ),
    ],
)
def test_weights_that_cannot_be_served_are_refused_in_words(
    world: World,
    fill: Fill,
    spoil: Callable[[Path], object],
    named: str,
) -> None:
    fill(world.store, 4)
    with world.in_background(), BatchStream.connect(world.config.home_dir) as stream:
        batches = iter(stream)
        batch = next(batches)
        spoil(Path(batch.folder))
        assert not batch.acknowledge()
        next(batches).refuse("enough")
    with world.store.read() as conn:
        assert any(named in str(policy.reason) for policy in policies.list_all(conn))


def test_turns_without_a_gradient_leave_the_queue_with_the_reason(world: World, fill: Fill) -> None:
    given = fill(world.store, 4)
    with world.in_background(), BatchStream.connect(world.config.home_dir) as stream:
        batch = next(iter(stream))
        batch.acknowledge(dropped=dict.fromkeys(given, "all alike"))
    with world.store.read() as conn:
        found = turns.get(conn, given[0])
    assert found is not None
    assert found.untrainable == "all alike"


def test_one_trainer_at_a_time(world: World) -> None:
    home = world.config.home_dir
    taken = pytest.raises(StreamEnded, match="the trainer 'first' is connected already")
    with world.in_background(), BatchStream.connect(home, name="first"), taken:
        BatchStream.connect(home)


def test_without_a_trainer_the_loop_waits_and_says_so(world: World, fill: Fill) -> None:
    fill(world.store, 4)
    assert not world.loop.run_once()
    assert "waiting for the trainer: no trainer is connected" in world.loop.note


def test_without_a_system_the_program_says_what_to_start(tmp_path: Path) -> None:
    with pytest.raises(StreamEnded, match=r"train\.trainer: external"):
        BatchStream.connect(tmp_path)


def test_settings_that_do_not_fit_or_have_no_effect_are_named() -> None:
    with pytest.raises(ConfigError, match=r"Set gate\.kind to numbers"):
        from_flat(SETTINGS | {"gate.kind": "probes"})
    with pytest.raises(ConfigError, match=r"Leave out train\.ranks"):
        from_flat(SETTINGS | {"train.ranks": 2})
    config: Config = from_flat(SETTINGS)
    (notice,) = unused_settings(config, {"train.optimizer.learning_rate": "flags: --lr"})
    assert "train.trainer" in notice
