"""Which files are removed to save space, when, and what is left of a version without files."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.train.state_trainer import StateTrainer

from openclaw_rl.common.policy_digest import OPTIMIZER_FILE
from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.load import train_settings
from openclaw_rl.settings.schema_train import TrainCheckpointConfig
from openclaw_rl.store import events
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, version_files
from openclaw_rl.train import version_thinning
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.policy_folders import META_FILE
from openclaw_rl.train.rollback import apply_rollback, plan_rollback
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.train.version_thinning import kept_states, kept_versions
from openclaw_rl.types import Policy, PolicyState

Fill = Callable[..., list[str]]
Start = Callable[..., TrainLoop]
DAY = 86400.0
ADAPTER = {"adapter_config.json": "a", "adapter_model.safetensors": "b", OPTIMIZER_FILE: "c"}
FULL = {"config.json": "a", "model.safetensors": "b", OPTIMIZER_FILE: "c"}


# ---------------------------------------------------------------------------------------- the plan


def row(head: Policy, version: int, at: float = 0.0, files: dict[str, str] | None = None) -> Policy:
    path = f"/nowhere/{version:06d}-x"
    return replace(
        head, version=version, path=path, created_at=at, files=ADAPTER if files is None else files
    )


def test_the_newest_versions_and_one_a_day_are_kept(head: Policy) -> None:
    rows = [row(head, n, at=n * DAY / 4) for n in range(1, 41)]  # four a day over ten days
    line = list(range(40, -1, -1))
    settings = TrainCheckpointConfig(keep=4, keep_versions=6, keep_days=5)
    assert kept_versions(rows, line, settings, now=10 * DAY) == {*range(35, 41), 34, 31, 27}
    assert kept_states(rows, line, settings) == {37, 38, 39, 40}
    none = settings.model_copy(update={"keep_days": 0})
    assert kept_versions(rows, line, none, now=10 * DAY) == set(range(35, 41))


def test_versions_needed_by_an_undo_are_counted_along_the_lineage(head: Policy) -> None:
    """Versions 5 to 9 were rolled back: the newest of the lineage stay, and the newest of all."""
    rows = [row(head, n) for n in range(1, 5)]
    rows += [replace(row(head, n), state=PolicyState.ROLLED_BACK) for n in range(5, 10)]
    rows += [replace(row(head, 10), state=PolicyState.REJECTED)]
    settings = TrainCheckpointConfig(keep=2, keep_versions=3, keep_days=0)
    assert kept_versions(rows, [4, 3, 2, 1, 0], settings, now=DAY) == {2, 3, 4, 7, 8, 9}
    assert kept_states(rows, [4, 3, 2, 1, 0], settings) == {3, 4}


def test_full_weights_are_kept_for_fewer_versions(head: Policy) -> None:
    rows = [row(head, n, files=FULL) for n in range(1, 9)]
    line, settings = list(range(8, -1, -1)), TrainCheckpointConfig(keep=4)
    assert kept_versions(rows, line, settings, now=DAY) == {5, 6, 7, 8}
    assert kept_states(rows, line, settings) == {7, 8}


def test_the_version_that_a_home_started_from_is_kept(head: Policy, tmp_path: Path) -> None:
    (tmp_path / META_FILE).write_text("{}")
    rows = [replace(row(head, 1), path=str(tmp_path)), *(row(head, n) for n in range(2, 9))]
    settings = TrainCheckpointConfig(keep_versions=2, keep_days=0)
    assert kept_versions(rows, list(range(8, -1, -1)), settings, now=DAY) == {1, 7, 8}


def test_of_successive_steps_of_practice_the_last_is_kept(head: Policy) -> None:
    """Versions 1, 6 and 31 are made of a person's turns, all others by practice after them."""
    rows, line = [row(head, n) for n in range(1, 41)], list(range(40, -1, -1))
    settings = TrainCheckpointConfig(keep=2, keep_versions=7, keep_days=0)
    practised = set(range(1, 41)) - {1, 6, 31}
    assert kept_versions(rows, line, settings, now=DAY, practised=practised) == {
        40,
        39,
        31,
        30,
        6,
        5,
        1,
    }
    assert kept_versions(rows, line, settings, now=DAY) == set(range(34, 41))


# ---------------------------------------------------------------------------------------- the loop


@pytest.fixture
def start(
    store: Store, builder: SampleBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Start]:
    """Start a trainer on the home, like a restart. It keeps three versions, and two optimizer states."""
    monkeypatch.setattr(version_thinning, "REMOVAL_DELAY", 0.0)
    kept = {"checkpoint.keep": 2, "checkpoint.keep_versions": 3, "checkpoint.keep_days": 0}
    train = train_settings(
        {"batch.min_turns": 2, "batch.max_turns": 2, "batch.max_wait": 1e9} | kept
    )
    opened: list[TrainLoop] = []

    def make(**metrics: float) -> TrainLoop:
        for loop in opened:
            loop.close()
        opened.append(
            TrainLoop(store, StateTrainer(metrics), builder, train, tmp_path / "policies")
        )
        return opened[-1]

    yield make
    opened[-1].close()


def learn(loop: TrainLoop, store: Store, fill: Fill, steps: int) -> None:
    for _ in range(steps):
        fill(store, 2)
        assert loop.run_once()


def numbers(root: Path, name: str = "adapter_model.safetensors") -> list[int]:
    return sorted(int(file.parent.name[:6]) for file in root.glob(f"*/{name}"))


def rows_of(store: Store) -> dict[int, Policy]:
    with store.read() as conn:
        return {policy.version: policy for policy in policies.list_all(conn)}


def test_weights_of_old_versions_are_removed(
    start: Start, store: Store, fill: Fill, tmp_path: Path
) -> None:
    loop = start()
    learn(loop, store, fill, 8)
    assert numbers(tmp_path / "policies") == [6, 7, 8]
    assert numbers(tmp_path / "policies", OPTIMIZER_FILE) == [7, 8]
    assert len(list((tmp_path / "policies").iterdir())) == 3
    rows = rows_of(store)
    assert [v for v in rows if policies.is_removed(rows[v])] == [1, 2, 3, 4, 5]
    assert all(rows[v].digest and rows[v].metrics for v in range(1, 9)), "the rows stay"
    assert [version_files.examine_files(store, v) for v in (6, 7, 8)] == [None] * 3, (
        "what was removed is no damage"
    )
    with store.read() as conn:
        assert version_files.damage_reports(conn) == []


def test_a_rejected_candidate_leaves_no_files(
    start: Start, store: Store, fill: Fill, tmp_path: Path
) -> None:
    loop = start(**{"gradient/norm": 1e9})
    learn(loop, store, fill, 2)
    rows = rows_of(store)
    assert {rows[v].state for v in (1, 2)} == {PolicyState.REJECTED}
    assert list((tmp_path / "policies").iterdir()) == []


def test_rejected_candidates_of_an_older_program_are_removed(
    start: Start, store: Store, fill: Fill, tmp_path: Path
) -> None:
    learn(start(), store, fill, 3)
    with store.write() as conn:
        conn.exec_driver_sql("UPDATE policies SET files = NULL")
        conn.exec_driver_sql("UPDATE heads SET version = 2")
        conn.exec_driver_sql("UPDATE policies SET state = 'rejected' WHERE version = 3")
    learn(start(), store, fill, 1)
    assert numbers(tmp_path / "policies") == [1, 2, 4]
    assert numbers(tmp_path / "policies", OPTIMIZER_FILE) == [2, 4]
    assert version_files.examine_files(store, 1) is None


def test_a_rollback_to_a_version_without_files_names_the_versions_that_have_them(
    start: Start, store: Store, fill: Fill
) -> None:
    learn(start(), store, fill, 8)
    with store.read() as conn, pytest.raises(OpenClawError) as refused:
        plan_rollback(conn, 4)
    assert str(refused.value) == (
        "version 4 cannot be served: its files were removed to save space (train.checkpoint.keep_versions). "
        "Versions to roll back to: 7, 6, 0"
    )
    with store.write() as conn:
        agreed = plan_rollback(conn, 6)
        apply_rollback(conn, agreed, learn_again=False, reason="worse")
    loop = start()
    learn(loop, store, fill, 1)
    assert rows_of(store)[9].parent == 6


def test_the_version_that_is_served_keeps_its_files(
    start: Start, store: Store, fill: Fill, tmp_path: Path
) -> None:
    """An engine may be behind, for example if it cannot load the newest versions."""
    loop = start()
    learn(loop, store, fill, 2)
    with store.write() as conn:
        events.move_cursor(conn, policies.SERVED_CURSOR, 2)
    learn(loop, store, fill, 6)
    assert numbers(tmp_path / "policies") == [2, 6, 7, 8]


def test_weights_are_removed_some_time_after_the_store_says_so(
    start: Start, store: Store, fill: Fill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that began to load a version before can read it to the end; no engine begins afterwards."""
    monkeypatch.setattr(version_thinning, "REMOVAL_DELAY", 3600.0)
    loop = start()
    learn(loop, store, fill, 5)
    assert numbers(tmp_path / "policies") == [1, 2, 3, 4, 5]
    assert version_files.examine_files(store, 1) == policies.REMOVED_REASON
    loop._next_check = 0.0
    assert not loop.run_once()
    assert numbers(tmp_path / "policies") == [1, 2, 3, 4, 5]
    times = loop._thinner._removal_times
    assert min(times.values()) > time.monotonic()
    times.update(dict.fromkeys(times, time.monotonic()))
    loop._next_check = 0.0
    assert not loop.run_once()
    assert numbers(tmp_path / "policies") == [3, 4, 5]


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from openclaw_rl.settings.schema_train import TrainCheckpointConfig
from openclaw_rl.store.db import Store
from openclaw_rl.train import version_thinning
from openclaw_rl.train.version_thinning import VersionThinner

left = int(sys.argv[2])
def dying(remove):
    def call(*args, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return remove(*args, **options)
    return call

os.unlink = dying(os.unlink)
Path.unlink = dying(Path.unlink)
version_thinning.REMOVAL_DELAY = 0.0
home = Path(sys.argv[1])
with Store.open(home / "store.db") as store:
    settings = TrainCheckpointConfig(keep=2, keep_versions=3, keep_days=0)
    VersionThinner(store, home / "policies", settings).thin_versions(now=1e9)
"""


@pytest.mark.parametrize("removals", [0, 1, 4])
def test_a_kill_between_store_and_disk_is_recovered(
    start: Start,
    store: Store,
    fill: Fill,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    removals: int,
) -> None:
    monkeypatch.setattr(version_thinning.VersionThinner, "thin_versions", lambda self, now: None)
    learn(start(), store, fill, 6)
    assert numbers(tmp_path / "policies") == [1, 2, 3, 4, 5, 6]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), str(removals)], timeout=240
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(list((tmp_path / "policies").iterdir())) > 3
    assert [version_files.examine_files(store, version) for version in (4, 5, 6)] == [None] * 3
    monkeypatch.undo()
    monkeypatch.setattr(version_thinning, "REMOVAL_DELAY", 0.0)
    learn(start(), store, fill, 1)
    assert len(list((tmp_path / "policies").iterdir())) == 3
    assert numbers(tmp_path / "policies", OPTIMIZER_FILE) == [6, 7]
