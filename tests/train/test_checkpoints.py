"""Checkpoints: whole or not there, and a fresh home that begins on one."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.train.test_worker import run_worker_until

from openclaw_rl.common.atomic_files import link_files
from openclaw_rl.common.policy_digest import digest_of_folder
from openclaw_rl.common.steady_clock import boot_seconds
from openclaw_rl.errors import ConfigError, IdentityMismatch, ModelError
from openclaw_rl.settings.load import Config, train_settings
from openclaw_rl.store import events, leases
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import head_moves, policies
from openclaw_rl.supervisor.completion import save_last_checkpoint
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train import checkpoints, resume
from openclaw_rl.train.checkpoints import LATEST_LINK, META_FILE, CheckpointWriter, read_meta
from openclaw_rl.train.context import LoopParts
from openclaw_rl.train.lease_keeper import TRAINER_LEASE, LeaseKeeper
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.types import Policy

pytestmark = pytest.mark.system

Fill = Callable[..., list[str]]
SHAPE = {"rank": 1, "alpha": 1}  # of the scripted trainer's adapters


def settings(home: Path, **train: Any) -> Config:
    flat = {"batch.min_turns": 2, "batch.max_turns": 2, "lora": SHAPE, **train}
    return Config(home=str(home), train=train_settings(flat))


@pytest.fixture
def make_loop(
    store: Store, builder: SampleBuilder, tmp_path: Path
) -> Iterator[Callable[..., TrainLoop]]:
    opened = []

    def make(**train: Any) -> TrainLoop:
        config = settings(tmp_path, **train)
        saver = CheckpointWriter(store, config) if config.train.checkpoint.save_dir else None
        opened.append(
            TrainLoop(
                store,
                ScriptedTrainer(),
                builder,
                config.train,
                tmp_path / "policies",
                LoopParts(saver=saver),
            )
        )
        return opened[-1]

    yield make
    for loop in opened:
        loop.close()


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def head_of(store: Store) -> Policy:
    with store.read() as conn:
        return policies.head(conn)


def learn(loop: TrainLoop, store: Store, fill: Fill, times: int) -> None:
    for _ in range(times):
        fill(store, 2)
        assert loop.run_once()


def test_every_second_version_becomes_a_checkpoint(
    store: Store, make_loop: Callable[..., TrainLoop], fill: Fill, tmp_path: Path
) -> None:
    out = tmp_path / "saved"
    loop = make_loop(save_dir=str(out), save_interval=2)
    learn(loop, store, fill, 5)
    assert names(out) == ["checkpoint-2", "checkpoint-4", LATEST_LINK]
    assert (out / LATEST_LINK).resolve() == (out / "checkpoint-4").resolve()
    assert names(out / "checkpoint-4") == [
        "adapter_config.json",
        "adapter_model.safetensors",
        META_FILE,
    ]
    note = read_meta(out / "checkpoint-4")
    assert (note.step, note.version, note.lineage) == (4, 4, (4, 3, 2, 1, 0))
    assert (note.method, note.model, note.memory) == ("combine", "starter", {"steps": 4})
    assert note.digest == digest_of_folder(out / "checkpoint-4")
    with store.read() as conn:
        made = policies.get(conn, 4)
    assert made is not None
    assert made.digest == note.digest


def test_the_end_of_a_run_writes_a_checkpoint(
    store: Store, make_loop: Callable[..., TrainLoop], fill: Fill, tmp_path: Path
) -> None:
    out = tmp_path / "saved"
    config = settings(store.path.parent, save_dir=str(out), save_interval=100)
    assert config.store_path == store.path
    save_last_checkpoint(config)
    assert not out.exists() or names(out) == [], "nothing was learned"
    learn(make_loop(save_dir=str(out), save_interval=100), store, fill, 3)
    assert names(out) == []
    for _ in range(2):
        save_last_checkpoint(config)
        assert names(out) == ["checkpoint-3", LATEST_LINK]
        assert (out / LATEST_LINK).resolve() == (out / "checkpoint-3").resolve()
    save_last_checkpoint(settings(store.path.parent))


def test_a_checkpoint_keeps_files_that_the_home_removes(tmp_path: Path) -> None:
    home, kept = tmp_path / "home", tmp_path / "kept"
    home.mkdir(), kept.mkdir()
    (home / "optimizer.state").write_bytes(b"moments")
    link_files(home, kept)
    (home / "optimizer.state").unlink()
    assert (kept / "optimizer.state").read_bytes() == b"moments"


def test_a_checkpoint_missed_by_a_crash_is_written_later(
    store: Store, make_loop: Callable[..., TrainLoop], fill: Fill, tmp_path: Path
) -> None:
    out = tmp_path / "saved"
    first = make_loop()
    learn(first, store, fill, 1)
    first.close()
    second = make_loop(save_dir=str(out))
    assert not second.run_once()
    assert names(out) == ["checkpoint-1", LATEST_LINK]
    (out / LATEST_LINK).unlink()
    second.close()
    assert not make_loop(save_dir=str(out)).run_once()
    assert (out / LATEST_LINK).resolve() == (out / "checkpoint-1").resolve(), (
        "killed between the folder and its link"
    )


def test_a_checkpoint_of_another_lineage_is_replaced_but_not_of_another_home(
    store: Store,
    make_loop: Callable[..., TrainLoop],
    fill: Fill,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    out = tmp_path / "saved"
    loop = make_loop(save_dir=str(out))
    learn(loop, store, fill, 2)
    with store.write() as conn:
        head_moves.roll_back(conn, to=1, reason="worse", at=time.time())
    learn(loop, store, fill, 1)
    assert read_meta(out / "checkpoint-2").version == 3
    note = out / "checkpoint-2" / META_FILE
    theirs = json.dumps(json.loads(note.read_text()) | {"home": "/elsewhere"})
    note.write_text(theirs)
    with store.write() as conn:
        head_moves.roll_back(conn, to=1, reason="worse again", at=time.time())
    learn(loop, store, fill, 1)
    assert note.read_text() == theirs
    assert head_of(store).version == 4, "learning goes on"
    assert "of another home or program. Choose another train.checkpoint.save_dir" in caplog.text


SAVING = """
import itertools, sys
from dataclasses import replace
from pathlib import Path
from openclaw_rl.settings.load import Config, train_settings
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.db import Store
from openclaw_rl.train.checkpoints import CheckpointWriter

config = Config.model_validate_json(sys.argv[1])
store = Store.open(config.store_path)
with store.read() as conn:
    head = policies.head(conn)
saver = CheckpointWriter(store, config)
for step in itertools.cycle(range(1, 4)):
    saver.write_if_due(replace(head, metrics={"step": step}))
    print(step, flush=True)
"""


def test_a_kill_leaves_no_partial_checkpoint(
    store: Store, make_loop: Callable[..., TrainLoop], fill: Fill, tmp_path: Path
) -> None:
    learn(make_loop(), store, fill, 1)
    folder = Path(str(head_of(store).path))
    for n in range(20):
        (folder / f"part-{n}").write_bytes(b"x" * 4096)
    whole = {*names(folder), META_FILE}
    out = tmp_path / "saved"
    command = [
        sys.executable,
        "-c",
        SAVING,
        settings(tmp_path, save_dir=str(out)).model_dump_json(),
    ]
    for after in (0.003, 0.011):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as saving:
            assert saving.stdout is not None
            for _ in range(4):
                assert saving.stdout.readline()
            time.sleep(after)
            saving.kill()
            assert saving.wait() == -signal.SIGKILL
        there = [p for p in out.iterdir() if p.name.startswith("checkpoint-")]
        assert len(there) >= 3
        for path in there:
            assert set(names(path)) == whole, path
            assert read_meta(path).digest == digest_of_folder(path)


# ----------------------------------------------------------------------------------------- resuming


@pytest.fixture
def checkpoint(
    store: Store,
    make_loop: Callable[..., TrainLoop],
    fill: Fill,
    tmp_path: Path,
    starter_identity: str,
) -> Path:
    """Made by a home of the starter; of two steps."""
    loop = make_loop(save_dir=str(tmp_path / "saved"))
    learn(loop, store, fill, 2)
    path = tmp_path / "saved" / "checkpoint-2"
    note = json.loads((path / META_FILE).read_text())
    (path / META_FILE).write_text(json.dumps(note | {"identity": starter_identity}))
    return path


def test_a_new_home_starts_from_a_checkpoint(
    checkpoint: Path, builder: SampleBuilder, fill: Fill, tmp_path: Path, starter_identity: str
) -> None:
    config = settings(
        tmp_path / "new", resume=str(checkpoint), save_dir=str(tmp_path / "more"), method="binary"
    )
    resume.start_from_checkpoint(config, train=True)
    store = Store.open(config.store_path)
    head = head_of(store)
    assert (head.version, head.parent, head.metrics) == (1, 0, {"step": 2.0})
    assert head.memory == {"steps": 2}
    assert head.path is not None
    assert digest_of_folder(head.path) == head.digest == digest_of_folder(checkpoint)
    with store.read() as conn:
        recorded = events.read_after(conn, 0, 99, kinds=["policy.live", "policy.resumed"])
    assert [e.kind for e in recorded] == ["policy.live", "policy.resumed"]
    assert recorded[1].data["checkpoint"] == str(checkpoint)

    resume.start_from_checkpoint(config, train=True)  # the same command again
    assert head_of(store) == head

    trainer, saver = ScriptedTrainer(), CheckpointWriter(store, config)
    loop = TrainLoop(
        store, trainer, builder, config.train, config.policies_dir, LoopParts(saver=saver)
    )
    fill(store, 2, request={"identity": starter_identity, "version": 1})
    assert loop.run_once()
    loop.close()
    assert trainer.steps == 3, "the trainer stood on the checkpoint"
    note = read_meta(tmp_path / "more" / "checkpoint-3")
    assert (note.lineage, note.method) == ((2, 1, 0), "binary")
    assert note.came_of == (checkpoints.describe_checkpoint(read_meta(checkpoint)),)

    resume.start_from_checkpoint(config, train=True)
    assert head_of(store).version == 2, "a home that came of it goes on"
    store.close()


def test_latest_selects_the_newest_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    config = settings(tmp_path / "new", resume="latest", save_dir=str(checkpoint.parent))
    assert checkpoints.find_checkpoint(config.train) == checkpoint
    with pytest.raises(
        ConfigError, match=r"set train\.checkpoint\.save_dir too, the folder with the checkpoints"
    ):
        checkpoints.find_checkpoint(settings(tmp_path, resume="latest").train)
    with pytest.raises(ConfigError, match="no such checkpoint"):
        checkpoints.find_checkpoint(settings(tmp_path, resume=str(tmp_path / "none")).train)


def test_a_trained_home_refuses_a_checkpoint(
    checkpoint: Path, store: Store, fill: Fill, make_loop: Callable[..., TrainLoop], tmp_path: Path
) -> None:
    resume.start_from_checkpoint(settings(tmp_path, resume=str(checkpoint)), train=True)
    assert head_of(store).version == 2, "it is this home's own"
    note = json.loads((checkpoint / META_FILE).read_text())
    (checkpoint / META_FILE).write_text(json.dumps(note | {"digest": "f" * 64}))
    with pytest.raises(
        ConfigError, match=r"this one is trained already \(version 2\)\. Omit --resume"
    ):
        resume.start_from_checkpoint(settings(tmp_path, resume=str(checkpoint)), train=True)


@pytest.mark.parametrize(
    ("change", "train", "error", "words"),
    [
        ({"identity": "y" * 64}, {}, IdentityMismatch, "Set model.path starter"),
        ({"digest": "f" * 64}, {}, ModelError, "the weights are damaged"),
        (
            {"files": {"adapter_config.json": "f" * 64}},
            {},
            ModelError,
            "the checkpoint is damaged: its sha256 is ",
        ),
        (
            {"files": {"optimizer.state": "f" * 64}},
            {},
            ModelError,
            "the checkpoint is damaged: it is missing",
        ),
        ({"step": "many"}, {}, ConfigError, "checkpoint.json: cannot be read"),
        (
            {},
            {"lora": {"rank": 8}},
            ConfigError,
            "train.lora.rank 1, but the settings say 8. Set train.lora.rank 1",
        ),
        ({}, {"weights": "full"}, ConfigError, "train.finetune lora, but the settings say full"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_without_a_trace(
    checkpoint: Path,
    tmp_path: Path,
    change: dict[str, Any],
    train: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    note = json.loads((checkpoint / META_FILE).read_text())
    (checkpoint / META_FILE).write_text(json.dumps(note | change))
    config = settings(tmp_path / "new", resume=str(checkpoint), **train)
    with pytest.raises(error, match=words):
        resume.start_from_checkpoint(config, train=True)
    assert not config.policies_dir.exists() or names(config.policies_dir) == []
    (checkpoint / META_FILE).unlink()
    with pytest.raises(
        ConfigError, match=r"so this is not a checkpoint\. Expected a folder checkpoint-<step>"
    ):
        resume.start_from_checkpoint(config, train=True)


def test_resuming_waits_for_a_dead_trainer_and_refuses_a_running_one(
    checkpoint: Path, tmp_path: Path, starter_identity: str
) -> None:
    config = settings(tmp_path / "new", resume=str(checkpoint), lease=0.5)
    store = Store.open(config.store_path)
    with store.write() as conn:
        policies.ensure_root(conn, base="starter", identity=starter_identity, at=1.0)
    at_work = LeaseKeeper(store, ttl=0.5)
    assert at_work.acquire() is not None
    with pytest.raises(ConfigError, match="another trainer is running on this home"):
        resume.start_from_checkpoint(config, train=True)
    assert head_of(store).version == 0
    at_work.close()
    with store.write() as conn:
        assert leases.acquire(conn, TRAINER_LEASE, "dead", 60.0, boot_seconds())
    resume.start_from_checkpoint(config, train=True)
    assert head_of(store).version == 1
    with store.write() as conn:
        assert leases.acquire(conn, TRAINER_LEASE, "next", 1.0, time.time()), (
            "the lease was given back"
        )
    store.close()


def test_the_checkpoint_of_an_adapter_is_a_complete_model(checkpoint: Path, tmp_path: Path) -> None:
    config = resume.resolve_base(
        Config(home=str(tmp_path / "new"), model={"path": str(checkpoint)})
    )
    assert config.model.path == "starter"
    assert (config.train.checkpoint.resume, config.train.lora.rank, config.train.lora.alpha) == (
        str(checkpoint),
        1,
        1.0,
    )
    plain = Config(home=str(tmp_path / "new"))
    assert resume.resolve_base(plain) == plain
    other = Config(
        model={"path": str(checkpoint)}, train=train_settings({"checkpoint.resume": str(tmp_path)})
    )
    with pytest.raises(ConfigError, match="Set only one of them"):
        resume.resolve_base(other)


def test_binary_and_opd_train_the_shipped_model(
    tmp_path: Path, fill: Fill, starter_identity: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Optimizer, schedule and baseline go along from one method to the next, and from home to home."""
    caplog.set_level(logging.INFO)
    loose = {
        **{
            "batch.min_turns": 2,
            "batch.max_turns": 2,
            "safety.max_turn_log_ratio": 99,
            "poll": 0.01,
        },
        # No bound drops a token, whatever the starter thinks of the written replies.
        **{"loss.token_ratio_min": 1e-6, "loss.token_ratio_max": 1e6, "loss.clip_low": 1e-6},
    }
    said = {
        "request": {"identity": starter_identity},
        "hints": ("Answer in one word.",),
        "score": -1,
    }
    before: Path | None = None
    for step, method in enumerate(("binary", "opd"), start=1):
        out = tmp_path / f"saved-{method}"
        saved = {"checkpoint.save_dir": str(out), "checkpoint.resume": before and str(before)}
        train = train_settings(loose | saved | {"method": method})
        config = Config(home=str(tmp_path / method), train=train)
        resume.start_from_checkpoint(config, train=True)
        store = Store.open(config.store_path)
        with store.write() as conn:
            policies.ensure_root(conn, base="starter", identity=starter_identity, at=1.0)
        fill(store, 2, **said)
        before = out / f"checkpoint-{step}"
        run_worker_until(
            config, lambda _, at=before: (at.parent / LATEST_LINK).exists(), seconds=120.0
        )  # type: ignore[misc]
        head = head_of(store)
        store.close()
        assert head.metrics["step"] == step
        assert head.memory["baseline"]["all"][1] == 2, "opd keeps the baseline as it was"
        assert {"optimizer.state", "trainer.json"} <= set(names(before))
    assert "loss/opd" in head.metrics
    assert "the optimizer starts from the beginning" not in caplog.text
    assert read_meta(before).came_of  # type: ignore[arg-type]
