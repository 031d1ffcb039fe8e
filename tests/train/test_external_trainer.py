"""Another program takes the steps: it gets each turn in one batch, and what it does not acknowledge is free again."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from tests import small_disk
from tests.train.conftest import IDENTITY
from tests.train.external_world import BASE, SETTINGS, World, take_step

from openclaw_rl.common import steady_clock
from openclaw_rl.errors import ConfigError, DiskFull
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.other_trainers.batch_stream import BatchStream, StreamEnded, TurnBatch
from openclaw_rl.other_trainers.trainer_socket import TrainerGone, TrainerLink
from openclaw_rl.settings.load import Config, from_flat, load_all
from openclaw_rl.settings.unused import unused_settings
from openclaw_rl.store import leases, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.train.lease_keeper import TRAINER_LEASE
from openclaw_rl.train.sample_builder import SampleBuilder

Fill = Callable[..., list[str]]
LONE_TURN = {"train.batch.min_turns": 1, "train.batch.max_turns": 1}
"""Settings under which no batch follows a lone turn, so that its answer cannot come with the next batch."""


def test_each_turn_is_in_one_batch_with_its_stored_values(
    world: World,
    local: LocalTrainer,
    fill: Fill,
) -> None:
    given = fill(world.store, 8)
    with world.in_background(), BatchStream.connect(world.config.home_dir) as stream:
        assert stream.welcome["base"] == str(BASE)
        assert stream.welcome["lora"]["targets"] == "all-linear", "the value that PEFT takes"
        batches = iter(stream)
        kept, seen = [], []
        for _ in range(2):
            batch = next(batches)
            take_step(local, batch)
            kept.append(batch.acknowledge({"loss/total": 0.5}))
            assert batch.acknowledge({"loss/total": float("nan")}), (
                "a second time counts for nothing"
            )
            seen.append([row["turn"] for row in batch.rows])
            assert batch.rows[0]["logprobs"] == [-1.0] * len(batch.rows[0]["response_ids"])
    assert kept == [True, True]
    assert seen == [given[:4], given[4:]]
    assert world.used() == {1: given[:4], 2: given[4:]}
    with world.store.read() as conn:
        assert policies.head(conn).metrics["loss/total"] == 0.5


def test_a_batch_that_is_not_acknowledged_is_free_again(
    world: World, local: LocalTrainer, fill: Fill
) -> None:
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
    assert len(list(world.config.policies_dir.iterdir())) == 1, (
        "the folder of the lost batch is removed"
    )


def test_a_restarted_train_worker_needs_no_optimizer_state(
    world: World, local: LocalTrainer, fill: Fill, caplog: pytest.LogCaptureFixture
) -> None:
    """Versions of another program have none: it keeps its own."""
    fill(world.store, 8)
    for start in range(2):
        if start:
            world.close()
            world.trainer, world.loop = world.start()
        with world.in_background(), BatchStream.connect(world.config.home_dir) as stream:
            batch = stream.current_batch()
            take_step(local, batch)
            (Path(batch.folder) / "optimizer.state").unlink()
            assert batch.acknowledge()
    assert len(world.used()) == 2
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == []


def test_a_killed_trainer_program_loses_no_turn(
    world: World, local: LocalTrainer, fill: Fill
) -> None:
    given = fill(world.store, 4)
    words = (
        "import sys, time; from openclaw_rl.other_trainers.batch_stream import BatchStream;"
        "next(iter(BatchStream.connect(sys.argv[1]))); print('has it', flush=True); time.sleep(60)"
    )
    with world.in_background():
        with subprocess.Popen(
            [sys.executable, "-c", words, str(world.config.home_dir)],
            stdout=subprocess.PIPE,
            env=dict(os.environ),
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"has it\n"
            process.kill()
        with BatchStream.connect(world.config.home_dir) as stream:
            batch = next(iter(stream))
            take_step(local, batch)
            assert batch.acknowledge()
    assert world.used() == {1: given}


def test_weights_beyond_a_bound_are_rejected(world: World, local: LocalTrainer, fill: Fill) -> None:
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


def hand_over(local: LocalTrainer, batch: TurnBatch, loss: float) -> None:
    take_step(local, batch)
    batch.acknowledge({"loss/total": loss})


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (lambda local, batch: hand_over(local, batch, float("nan")), "loss/total"),
        (lambda local, batch: batch.acknowledge(), "wrote no weights to the folder"),
        (
            lambda local, batch: batch.refuse("a reply in Latin"),
            "refused the batch: a reply in Latin",
        ),
    ],
    ids=["a bound", "no weights", "the program itself"],
)
@pytest.mark.timeout(60)
def test_a_rejected_step_is_answered_with_the_reason(
    store: Store,
    builder: SampleBuilder,
    tmp_path: Path,
    local: LocalTrainer,
    fill: Fill,
    answer: Callable[[LocalTrainer, TurnBatch], object],
    named: str,
) -> None:
    world = World(store, builder, tmp_path, **LONE_TURN)
    (turn,) = fill(store, 1)
    with closing(world), world.in_background(), BatchStream.connect(tmp_path) as stream:
        batch = stream.current_batch()
        answer(local, batch)
        assert not batch.is_kept
        assert named in str(batch.rejection)
        assert not stream.has_message(), "nothing follows"
        with store.read() as conn:
            found = turns.get(conn, turn)
        assert found is not None
        assert named in str(found.untrainable), "what was decided is in the store"
        fill(store, 1)
        load = stream.current_batch().load
    assert load is not None
    assert load.folder is None, "the next batch begins with the weights before"


@pytest.mark.timeout(60)
def test_a_step_under_a_lost_lease_is_answered_while_another_worker_has_it(
    world: World, local: LocalTrainer, fill: Fill
) -> None:
    fill(world.store, 4)
    with world.in_background(), BatchStream.connect(world.config.home_dir) as stream:
        batch = stream.current_batch()
        take_step(local, batch)
        world.frozen_seconds = world.config.train.safety.lease_ttl + 1
        now = steady_clock.boot_seconds() + world.frozen_seconds
        with world.store.write() as conn:
            leases.acquire(
                conn, TRAINER_LEASE, f"{steady_clock.boot_name()}:another worker", 1000, now
            )
        assert not batch.acknowledge()
        assert "lease" in str(batch.rejection)


@pytest.mark.timeout(60)
def test_a_step_that_a_full_disk_interrupts_is_answered_before_there_is_space(
    builder: SampleBuilder, tmp_path: Path, local: LocalTrainer, fill: Fill
) -> None:
    with (
        small_disk.mount_small_disk(tmp_path / "small", 40) as disk,
        Store.open(disk / "store.db") as store,
    ):
        with store.write() as conn:
            policies.ensure_root(conn, base="b", identity=IDENTITY, at=1.0)
        fill(store, 4)
        world = World(store, builder, disk)
        with closing(world), BatchStream.connect(disk) as stream, ThreadPoolExecutor(1) as pool:
            iteration = pool.submit(world.loop.run_once)
            batch = stream.current_batch()
            take_step(local, batch)
            small_disk.fill(disk)
            assert not batch.acknowledge()
            assert "disk" in str(batch.rejection)
            with pytest.raises(DiskFull):
                iteration.result()
            small_disk.free(disk)


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda folder: None, "wrote no weights"),
        (
            lambda folder: (folder / "adapter_config.json").write_text("{}"),
            "has no adapter_model.safetensors",
        ),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"0"),
            "train.finetune says an adapter",
        ),
        (
            lambda folder: [
                (folder / "adapter_config.json").write_text('{"r": 64}'),
                (folder / "adapter_model.safetensors").write_bytes(b"0"),
            ],
            "the adapter has rank 64",
        ),
    ],
)
def test_weights_that_cannot_be_served_are_refused_with_a_message(
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


def test_a_connection_that_another_thread_closes_has_no_trainer() -> None:
    """The thread that welcomes the next trainer closes the connection of the last one, for which the loop may wait."""
    ours, theirs = socket.socketpair()
    link = TrainerLink(ours, "slime")
    ours.close()
    with theirs, pytest.raises(TrainerGone, match="the trainer 'slime' is no longer connected"):
        link.receive("done", within=5)
    link = TrainerLink(ours, "slime")
    assert not link.is_open()


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


@pytest.mark.parametrize(
    "page", ["docs/guides/other_trainers.md", "examples/other_trainers/trl_kto.py"]
)
def test_the_printed_commands_are_accepted_and_each_setting_has_an_effect(page: str) -> None:
    text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"^ +openclaw-rl up( --set .*)", text, re.MULTILINE)
    assert commands
    for command in commands:
        loaded = load_all(sets=re.findall(r"--set (\S+)", command), environ={})
        assert list(loaded.notices) == [], command
