"""A train loop whose trainer is another program, and the own trainer as that program."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from openclaw_rl.common import steady_clock
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.types import Sample
from openclaw_rl.other_trainers.batch_stream import BatchStream, StreamEnded, TurnBatch
from openclaw_rl.other_trainers.external_trainer import ExternalTrainer
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import STARTER, from_flat
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.train.context import LoopParts
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder

BASE = ModelFiles.from_path(STARTER).folder
SETTINGS = {
    "train.trainer": "external",
    "gate.kind": "numbers",
    "train.method": "binary",
    "train.batch.min_turns": 4,
    "train.batch.max_turns": 4,
    "practice.enabled": False,
    "train.safety.lease_ttl": 300.0,  # a machine that is busy with other work may leave this process none for a minute
}


class World:
    """A train loop whose trainer is another program."""

    def __init__(self, store: Store, builder: SampleBuilder, folder: Path, **settings: Any) -> None:
        self.config = from_flat(SETTINGS | {"home": str(folder)} | settings)
        self.store, self._builder = store, builder
        self.frozen_seconds = 0.0  # in which the train worker renewed no lease
        self.trainer, self.loop = self.start()

    def start(self) -> tuple[ExternalTrainer, TrainLoop]:
        trainer, train = ExternalTrainer(self.config, str(BASE)), self.config.train
        return trainer, TrainLoop(
            self.store,
            trainer,
            self._builder,
            train,
            self.config.policies_dir,
            LoopParts(lease_clock=lambda: steady_clock.boot_seconds() + self.frozen_seconds),
        )

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


def connect_when_free(home: Path) -> BatchStream:
    """Connect as soon as the other trainer's connection has ended."""
    while True:
        with suppress(StreamEnded):
            return BatchStream.connect(home)
        time.sleep(0.05)


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
        local.load(folder=batch.load.folder, method_state={})
    Path(batch.folder).rmdir()
    samples = [to_sample(row) for row in batch.rows]
    sampled = zip(samples, local.score(samples), strict=True)  # the replies were not really sampled
    result = local.step(
        [replace(sample, logprobs=logprobs) for sample, logprobs in sampled], batch.folder
    )
    assert result.folder is not None
