"""A turn on which trainers die is found by bisection and set aside; the others train."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.store.deaths import deaths_until_done, die

from openclaw_rl.common.progress import Wait
from openclaw_rl.errors import DiskFull
from openclaw_rl.settings.load import train_settings
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.workers.attempts import MAX_DEATHS, AttemptLog
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder

TTL = 0.5


def training(path: Path, builder: SampleBuilder, trainer: ScriptedTrainer) -> Callable[[], None]:
    """Return work that trains until nothing is left."""

    def train() -> None:
        settings = train_settings({"batch_min": 1, "batch_max": 8, "safety.lease_ttl": TTL})
        with Store.open(path) as store:
            loop = TrainLoop(store, trainer, builder, settings, path.parent / "policies")
            give_up = time.monotonic() + 240
            while loop.run_once() or Wait.LEASE in loop.waits:
                assert time.monotonic() < give_up, loop.note
                time.sleep(0.02)
            loop.close()

    return train


def test_the_turn_that_the_trainer_dies_on_is_set_aside(
    store: Store, builder: SampleBuilder, fill: Callable[..., list[str]], tmp_path: Path
) -> None:
    ids = fill(store, 4)

    def die_on_one(samples: Any) -> dict[str, float]:
        if ids[2] in {sample.turn for sample in samples}:
            die()
        return {}

    deaths = deaths_until_done(training(store.path, builder, ScriptedTrainer(die_on_one)))
    assert deaths == MAX_DEATHS + 2, "twice with all four, once with two, once alone"
    with store.read() as conn:
        reasons = [turn.untrainable if (turn := turns.get(conn, id_)) else None for id_ in ids]
        line = policies.lineage(conn, policies.head(conn).version)
        trained = {use.turn for version in line for use in policies.uses_of_version(conn, version)}
    why = "set aside: the train worker died 2 times while it worked on it"
    assert reasons == [None, None, why, None]
    assert trained == {ids[0], ids[1], ids[3]}
    assert AttemptLog(store, "train").deaths() == {}


def test_one_death_sets_no_turn_aside(
    store: Store, builder: SampleBuilder, fill: Callable[..., list[str]], tmp_path: Path
) -> None:
    """A trainer that was killed once trains the same batch again."""
    ids = fill(store, 4)
    killed = tmp_path / "killed"

    def die_once(samples: Any) -> dict[str, float]:
        if not killed.exists():
            killed.touch()
            die()
        return {}

    assert deaths_until_done(training(store.path, builder, ScriptedTrainer(die_once))) == 1
    with store.read() as conn:
        assert [p.version for p in policies.list_all(conn)] == [0, 1]
        assert {use.turn for use in policies.uses_of_version(conn, 1)} == set(ids)


def test_a_stop_or_a_full_disk_is_not_a_death(
    store: Store, builder: SampleBuilder, fill: Callable[..., list[str]], tmp_path: Path
) -> None:
    fill(store, 4)
    noted: list[dict[str, int]] = []

    def full_disk(samples: Any) -> dict[str, float]:
        noted.append(AttemptLog(store, "train").deaths())
        loop.forget_attempts()
        noted.append(AttemptLog(store, "train").deaths())
        raise OSError(28, "No space left on device")

    loop = TrainLoop(
        store,
        ScriptedTrainer(full_disk),
        builder,
        train_settings({"batch_min": 1}),
        tmp_path / "policies",
    )
    for _ in range(3):
        try:
            loop.run_once()
        except DiskFull:
            assert AttemptLog(store, "train").deaths() == {}
    loop.close()
    assert [len(deaths) for deaths in noted[:2]] == [4, 0]
    with store.read() as conn:
        assert [p.version for p in policies.list_all(conn)] == [0]
