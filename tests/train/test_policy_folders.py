from __future__ import annotations

import os
from pathlib import Path

from openclaw_rl.train import policy_folders


def folder(root: Path, name: str, *, age: float) -> Path:
    path = root / name
    path.mkdir(parents=True)
    (path / "adapter_model.safetensors").write_bytes(b"weights")
    os.utime(path, (1000.0 - age, 1000.0 - age))
    return path


def test_orphaned_folders_are_removed_and_policies_kept(tmp_path: Path) -> None:
    published = folder(tmp_path, "000001-aa", age=50)
    rejected = folder(tmp_path, "000002-bb", age=40)
    folder(tmp_path, "000003-dead", age=30)
    folder(tmp_path, ".000004-half.tmp", age=20)
    mine = folder(tmp_path, "000005-of-the-next-holder", age=-10)
    named = [str(published), str(rejected)]
    removed = policy_folders.remove_orphans(tmp_path, named, before=1000.0)
    assert removed == [".000004-half.tmp", "000003-dead"]
    assert sorted(tmp_path.iterdir()) == [published, rejected, mine]
    assert policy_folders.remove_orphans(tmp_path / "nowhere", named, before=1000.0) == []


def test_folder_names_are_unique(tmp_path: Path) -> None:
    root = tmp_path / "policies"
    assert policy_folders.new_folder(root, 7) != policy_folders.new_folder(root, 7)
    assert root.stat().st_mode & 0o777 == 0o700
    assert policy_folders.versions_on_disk(root) == []
    for version in (7, 1234567):
        policy_folders.new_folder(root, version).mkdir()
    (root / ".000008-half.tmp").mkdir()
    assert policy_folders.versions_on_disk(root) == [7, 1234567]
