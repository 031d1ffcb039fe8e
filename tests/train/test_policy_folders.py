from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from openclaw_rl.common.policy_digest import digest_of_folder, weight_files
from openclaw_rl.engines import adapter_file
from openclaw_rl.errors import EngineError
from openclaw_rl.train import policy_folders
from openclaw_rl.types import Policy, PolicyRef


def folder(root: Path, name: str, *, age: float) -> Path:
    path = root / name
    path.mkdir(parents=True)
    (path / policy_folders.OPTIMIZER_FILE).write_bytes(b"moments")
    (path / "adapter_model.safetensors").write_bytes(b"weights")
    os.utime(path, (1000.0 - age, 1000.0 - age))
    return path


def test_orphans_go_and_policies_stay(tmp_path: Path, head: Policy) -> None:
    published = folder(tmp_path, "000001-aa", age=50)
    rejected = folder(tmp_path, "000002-bb", age=40)
    folder(tmp_path, "000003-dead", age=30)
    folder(tmp_path, ".000004-half.tmp", age=20)
    mine = folder(tmp_path, "000005-of-the-next-holder", age=-10)
    rows = [head, replace(head, version=1, path=str(published)), replace(head, version=2, path=str(rejected))]
    removed = policy_folders.remove_orphans(tmp_path, rows, before=1000.0)
    assert removed == [".000004-half.tmp", "000003-dead"]
    assert sorted(tmp_path.iterdir()) == [published, rejected, mine]
    assert policy_folders.remove_orphans(tmp_path / "nowhere", rows, before=1000.0) == []


def test_only_old_optimizer_states_are_thinned_out(tmp_path: Path) -> None:
    paths = [folder(tmp_path, f"{n:06d}-x", age=0) for n in range(1, 8)]
    policy_folders.prune(tmp_path, keep=2, spare=(None, str(paths[1])))
    assert [(p / policy_folders.OPTIMIZER_FILE).exists() for p in paths] == [
        False,
        True,
        False,
        False,
        False,
        True,
        True,
    ]
    assert all((p / "adapter_model.safetensors").exists() for p in paths)


def test_of_whole_models_the_weights_are_thinned_out_too(tmp_path: Path) -> None:
    """What engines and trainers may still be asked for stays whole: the newest, and the ones to spare."""
    paths = [tmp_path / f"{n:06d}-x" for n in range(1, 8)]
    for path in paths:
        path.mkdir()
        for name in (
            policy_folders.OPTIMIZER_FILE,
            policy_folders.EMA_TEACHER_FILE,
            "model-00001-of-00002.safetensors",
            "tokenizer.json",
            *policy_folders.KEPT_WHEN_PRUNED,
        ):
            (path / name).write_bytes(name.encode())
    digests = [digest_of_folder(path) for path in paths]
    policy_folders.prune(tmp_path, keep=4, spare=(None, str(paths[1])))
    whole = [False, True, False, True, True, True, True]
    assert [bool(weight_files(p)) for p in paths] == whole
    for name in (policy_folders.OPTIMIZER_FILE, policy_folders.EMA_TEACHER_FILE):
        assert [(p / name).exists() for p in paths] == [False, True, False, False, False, True, True]
    assert [digest_of_folder(p) for p, kept in zip(paths, whole, strict=True) if kept] == [
        d for d, kept in zip(digests, whole, strict=True) if kept
    ]
    assert {p.name for p in paths[0].iterdir()} == set(policy_folders.KEPT_WHEN_PRUNED)
    with pytest.raises(FileNotFoundError, match="no longer kept"):
        digest_of_folder(paths[0])
    policy_folders.prune(tmp_path, keep=4, spare=(None, str(paths[1])))
    with pytest.raises(EngineError, match=r"version 1: .* no longer kept; .* train\.checkpoint\.keep"):
        adapter_file.check_full_weights(PolicyRef(version=1, path=str(paths[0]), digest=digests[0]))


def test_names_are_never_shared(tmp_path: Path) -> None:
    root = tmp_path / "policies"
    assert policy_folders.new_folder(root, 7) != policy_folders.new_folder(root, 7)
    assert root.stat().st_mode & 0o777 == 0o700
