"""A version whose files differ from what was written: not trained from, its turns are not lost, and it is reported."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.train.conftest import put
from tests.train.state_trainer import StateTrainer

from openclaw_rl.errors import ModelError, OpenClawError
from openclaw_rl.settings.load import from_flat, train_settings
from openclaw_rl.status.diagnose import find_diagnoses
from openclaw_rl.store import file_digests
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, version_files
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.rollback import check_policy_files, plan_rollback
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.types import JudgedTurn, Policy, PolicyState

FILES = ("adapter_config.json", "adapter_model.safetensors", "optimizer.state", "trainer.json")
Fill = Callable[..., list[str]]
Start = Callable[[], tuple[TrainLoop, StateTrainer]]


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def add_beside(file: Path) -> None:
    file.with_name("average.state").write_bytes(b"of another version")


DAMAGES = {
    "flipped": flip,
    "truncated": truncate,
    "missing": Path.unlink,
    "with another file beside": add_beside,
}


@pytest.fixture
def start(store: Store, builder: SampleBuilder, tmp_path: Path) -> Iterator[Start]:
    """Start a trainer on the home, like a restart."""
    train = train_settings({"batch.min_turns": 2, "batch.max_turns": 2, "batch.max_wait": 1e9})
    opened: list[TrainLoop] = []

    def make() -> tuple[TrainLoop, StateTrainer]:
        for loop in opened:
            loop.close()
        trainer = StateTrainer()
        opened.append(TrainLoop(store, trainer, builder, train, tmp_path / "policies"))
        return opened[-1], trainer

    yield make
    opened[-1].close()


def learn(loop: TrainLoop, store: Store, fill: Fill, versions: int) -> list[list[str]]:
    used = []
    for _ in range(versions):
        used.append(fill(store, 2))
        assert loop.run_once()
    return used


def policy_of(store: Store, version: int | None = None) -> Policy:
    with store.read() as conn:
        found = policies.head(conn) if version is None else policies.get(conn, version)
    assert found is not None
    return found


def file_of(store: Store, version: int, name: str) -> Path:
    return Path(str(policy_of(store, version).path)) / name


def used_turns(store: Store, version: int) -> set[str]:
    with store.read() as conn:
        return {use.turn for use in policies.uses_of_version(conn, version)}


def run_idle(loop: TrainLoop, times: int = 4) -> None:
    for _ in range(times):
        loop._next_check = 0.0
        loop.run_once()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_head_is_not_a_start_for_training(
    start: Start, store: Store, fill: Fill, caplog: pytest.LogCaptureFixture, kind: str, name: str
) -> None:
    loop, _ = start()
    used = learn(loop, store, fill, 3)
    damaged = policy_of(store)
    DAMAGES[kind](file_of(store, 3, name))
    loop, trainer = start()
    fill(store, 2)
    while policy_of(store).version < 4:
        assert loop.run_once()
    assert policy_of(store).parent == 2
    assert trainer.loaded == [policy_of(store, 2).path]
    assert used_turns(store, 4) == set(used[2]), "its turns are trained on again"
    found = policy_of(store, 3)
    assert (found.state, found.files) == (PolicyState.ROLLED_BACK, damaged.files)
    assert "version 3 is damaged: " in caplog.text
    assert "the head moves back from version 3 to version 2" in caplog.text
    with store.read() as conn:
        (report,) = version_files.damage_reports(conn)
    assert report.startswith(
        f"version 3 is damaged: {'average.state' if kind.startswith('with') else name} "
    )
    assert f"Restore {found.path} from a backup" in report


def test_hidden_files_are_not_damage(start: Start, store: Store, fill: Fill) -> None:
    loop, _ = start()
    learn(loop, store, fill, 1)
    file_of(store, 1, ".DS_Store").write_bytes(b"of a file manager")
    run_idle(loop)
    assert policy_of(store).version == 1


@pytest.mark.parametrize("versions", [3, 5])
def test_without_a_sound_version_training_starts_from_the_base(
    start: Start, store: Store, fill: Fill, versions: int
) -> None:
    loop, _ = start()
    used = learn(loop, store, fill, versions)
    for version, name in zip(range(1, versions + 1), FILES * 2, strict=False):
        flip(file_of(store, version, name))
    loop, trainer = start()
    while (head := policy_of(store)).version != versions + 1:
        loop.run_once()
    assert (head.parent, trainer.loaded) == (0, [None])
    with store.read() as conn:
        assert len(version_files.damage_reports(conn)) == versions
    while loop.run_once():
        pass
    with store.read() as conn:
        line = policies.lineage(conn, policies.head(conn).version)
    again = [turn for version in line for turn in used_turns(store, version)]
    assert sorted(again) == sorted(itertools.chain(*used)), (
        "nothing is lost, and nothing is used twice in one lineage"
    )


def test_damage_is_found_while_the_trainer_waits(start: Start, store: Store, fill: Fill) -> None:
    """The trainer holds the weights in memory; the head moves back nevertheless, as no engine could load it again."""
    loop, trainer = start()
    learn(loop, store, fill, 3)
    flip(file_of(store, 3, "trainer.json"))
    run_idle(loop)
    assert policy_of(store).version == 4, "trained on the turns of version 3"
    assert policy_of(store).parent == 2
    assert trainer.loaded == [None, policy_of(store, 2).path]


def test_a_damaged_older_version_is_reported_and_is_no_rollback_target(
    start: Start, store: Store, fill: Fill
) -> None:
    loop, _ = start()
    learn(loop, store, fill, 4)
    flip(file_of(store, 3, "optimizer.state"))
    run_idle(loop)
    assert policy_of(store).version == 4
    with store.read() as conn:
        (report,) = version_files.damage_reports(conn)
        assert report.startswith("version 3 is damaged: optimizer.state has sha256 ")
        with pytest.raises(
            OpenClawError, match=r"^version 3 cannot be served: .* back to: 2, 1, 0$"
        ):
            plan_rollback(conn, None)


def test_damage_found_by_a_rollback_is_recorded(start: Start, store: Store, fill: Fill) -> None:
    loop, _ = start()
    learn(loop, store, fill, 3)
    truncate(file_of(store, 1, "adapter_config.json"))
    with pytest.raises(
        OpenClawError, match=r"version 1 cannot be served: adapter_config\.json .*back to: 2, 0$"
    ):
        check_policy_files(store, DEFAULT_NAME, 1)
    assert policy_of(store, 1).damage is not None
    assert policy_of(store).version == 3


def test_the_doctor_finds_damage_in_a_system_that_is_stopped(
    start: Start, store: Store, fill: Fill
) -> None:
    loop, _ = start()
    learn(loop, store, fill, 3)
    loop.close()
    flip(file_of(store, 2, "trainer.json"))
    config = from_flat({"home": str(store.path.parent)})
    with store.read() as conn:
        (found,) = find_diagnoses(config, conn, 0.0, examine=True)
        assert find_diagnoses(config, conn, 0.0) == [], "status reads no weights"
    assert found.name == "damaged weights"
    assert found.evidence.startswith("version 2 is damaged: trainer.json has sha256 ")


def test_restored_files_clear_the_damage(
    start: Start, store: Store, fill: Fill, tmp_path: Path
) -> None:
    loop, _ = start()
    learn(loop, store, fill, 2)
    folder = Path(str(policy_of(store, 1).path))
    shutil.copytree(folder, tmp_path / "backup")
    flip(folder / "optimizer.state")
    run_idle(loop)
    assert policy_of(store, 1).damage
    shutil.copytree(tmp_path / "backup", folder, dirs_exist_ok=True)
    run_idle(loop)
    assert policy_of(store, 1).damage is None
    with store.read() as conn:
        assert version_files.rollback_targets(conn) == [1, 0]


def test_turns_of_damaged_versions_are_trained_on_again(
    start: Start, store: Store, fill: Fill
) -> None:
    loop, _ = start()
    (turns,) = learn(loop, store, fill, 1)
    for version in (1, 2, 3):
        flip(file_of(store, version, "adapter_model.safetensors"))
        loop, _ = start()
        while policy_of(store).version != version + 1:
            loop.run_once()
    assert used_turns(store, 4) == set(turns)


def test_an_unmounted_folder_is_not_damage(
    start: Start, store: Store, fill: Fill, tmp_path: Path
) -> None:
    """Otherwise everything would be learned from the base again."""
    loop, _ = start()
    learn(loop, store, fill, 2)
    (tmp_path / "policies").rename(tmp_path / "elsewhere")
    loop, _ = start()
    fill(store, 2)
    with pytest.raises(ModelError, match="the files of version 2 cannot be read"):
        run_idle(loop)
    assert policy_of(store).version == 2
    (tmp_path / "elsewhere").rename(tmp_path / "policies")
    assert loop.run_once()
    assert policy_of(store).parent == 2


def test_versions_of_an_older_program_are_checked_by_the_digest_of_their_weights(
    start: Start, store: Store, judged: Callable[..., JudgedTurn]
) -> None:
    loop, _ = start()
    for _ in range(2):
        put(store, [judged(), judged()])
        assert loop.run_once()
    with store.write() as conn:
        conn.exec_driver_sql("UPDATE policies SET files = NULL")
    flip(file_of(store, 2, "optimizer.state"))
    assert version_files.examine_files(store, 2) is None
    flip(file_of(store, 2, "adapter_model.safetensors"))
    assert "the weights have digest" in str(version_files.examine_files(store, 2))
    assert policy_of(store).version == 1


def test_large_files_that_have_not_changed_are_not_read_again(
    store: Store, fill: Fill, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full weights have gigabytes. The gateway leaves them to the engine, which compares what it loads."""
    monkeypatch.setattr(file_digests, "NOTABLE_BYTES", 1)
    loop, _ = start()
    learn(loop, store, fill, 1)
    file = file_of(store, 1, "adapter_model.safetensors")
    before = file.stat()
    flip(file)
    os.utime(
        file, ns=(before.st_atime_ns, before.st_mtime_ns)
    )  # a fault of the disk changes no times
    assert version_files.examine_files(store, 1, trusts_known=True) is None
    assert str(version_files.examine_files(store, 1)).startswith(
        "adapter_model.safetensors has sha256"
    )


def test_large_files_are_read_again_after_a_change(
    store: Store, fill: Fill, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_digests, "NOTABLE_BYTES", 1)
    loop, _ = start()
    learn(loop, store, fill, 1)
    flip(file_of(store, 1, "adapter_model.safetensors"))
    damage = version_files.examine_files(store, 1, trusts_known=True)
    assert str(damage).startswith("adapter_model.safetensors has sha256")
