"""When a step is taken, of how many batches, and what is measured after some of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.train.test_checkpoints import Fill, head_of, learn, rooms, settings

from openclaw_rl.store.db import Store
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder

__all__ = ["rooms"]


def test_after_the_last_step_nothing_is_trained(store: Store, rooms: Callable[..., TrainLoop], fill: Fill) -> None:
    room = rooms(max_steps=2)
    learn(room, store, fill, 2)
    fill(store, 2)
    assert not room.run_once()
    assert room.note == "train.max_steps 2 is reached: version 2 is the last"
    room.close()
    learn(rooms(max_steps=3), store, fill, 1)
    assert head_of(store).version == 3


def test_accumulated_batches_make_one_step(store: Store, builder: SampleBuilder, fill: Fill, tmp_path: Path) -> None:
    trainer = ScriptedTrainer()
    train = settings(tmp_path, accumulation=3, batch_max=3).train
    room = TrainLoop(store, trainer, builder, train, tmp_path / "policies")
    fill(store, 5)
    assert not room.run_once()
    assert room.note == "waiting for turns: 5 of 6"
    fill(store, 6)
    assert room.run_once()
    assert [len(batch) for batch in trainer.batches] == [9]
    room.close()


def test_after_some_steps_the_metrics_say_how_people_take_it(
    store: Store, builder: SampleBuilder, fill: Fill, tmp_path: Path
) -> None:
    train = settings(tmp_path).train
    room = TrainLoop(store, ScriptedTrainer(), builder, train, tmp_path / "policies", eval_every=2)
    learn(room, store, fill, 1)
    assert "eval/turns" not in head_of(store).metrics
    learn(room, store, fill, 1)
    assert head_of(store).metrics["eval/turns"] == 4
    assert head_of(store).metrics["eval/satisfaction"] == 1
    room.close()
