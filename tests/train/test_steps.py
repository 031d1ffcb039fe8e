"""When a step is taken, of how many batches, and what is measured after some of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.train.test_checkpoints import Fill, head_of, learn, make_loop, settings

from openclaw_rl.store.db import Store
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train.context import LoopParts
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder

__all__ = ["make_loop"]


def test_no_step_is_taken_after_the_last_one(
    store: Store, make_loop: Callable[..., TrainLoop], fill: Fill
) -> None:
    loop = make_loop(max_steps=2)
    learn(loop, store, fill, 2)
    fill(store, 2)
    assert not loop.run_once()
    assert loop.note == "train.max_steps 2 is reached: version 2 is the last"
    loop.close()
    learn(make_loop(max_steps=3), store, fill, 1)
    assert head_of(store).version == 3


def test_accumulated_batches_make_one_step(
    store: Store, builder: SampleBuilder, fill: Fill, tmp_path: Path
) -> None:
    trainer = ScriptedTrainer()
    train = settings(tmp_path, accumulation=3, batch_max=3).train
    loop = TrainLoop(store, trainer, builder, train, tmp_path / "policies")
    fill(store, 5)
    assert not loop.run_once()
    assert loop.note == "waiting for turns: 5 of 6"
    fill(store, 6)
    assert loop.run_once()
    assert [len(batch) for batch in trainer.batches] == [9]
    loop.close()


def test_satisfaction_is_a_metric_after_some_steps(
    store: Store, builder: SampleBuilder, fill: Fill, tmp_path: Path
) -> None:
    train = settings(tmp_path).train
    loop = TrainLoop(
        store, ScriptedTrainer(), builder, train, tmp_path / "policies", LoopParts(eval_every=2)
    )
    learn(loop, store, fill, 1)
    assert "eval/turns" not in head_of(store).metrics
    learn(loop, store, fill, 1)
    assert head_of(store).metrics["eval/turns"] == 4
    assert head_of(store).metrics["eval/satisfaction"] == 1
    loop.close()
