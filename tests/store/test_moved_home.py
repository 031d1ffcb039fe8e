"""A home that was moved or copied reads its own files, and a store that was lost is reported instead of replaced."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.store.world import policy

from openclaw_rl.errors import StoreError
from openclaw_rl.store import leases
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.store.test_moved_home import publish
from openclaw_rl.store.db import Store

store = Store.open(Path(sys.argv[1]) / "store.db")
for version in map(int, sys.argv[2:]):
    publish(store, version)
os.kill(os.getpid(), signal.SIGKILL)
"""


def folder_of(home: Path, version: int) -> Path:
    return home / "policies" / f"{version:06d}-0123abcd"


def publish(store: Store, version: int) -> None:
    """Publish a version with a folder in the home of the store."""
    home = store.path.parent
    folder_of(home, version).mkdir(parents=True)
    with store.write() as conn:
        policies.ensure_root(conn, base="base", identity="i", at=1.0)
        lease = leases.acquire(conn, "train", "me", 30.0, 100.0)
        assert lease is not None
        made = replace(policy(version, version - 1), path=str(folder_of(home, version)))
        policies.publish(conn, lease, made, [], 100.0)


def make_home(home: Path, *versions: int, killed: bool = False) -> Path:
    """A home with these versions. `killed`: its write-ahead log is left, as by a process that was killed."""
    home.mkdir()
    if killed:
        given = [sys.executable, "-c", KILLED, str(home), *map(str, versions)]
        root = Path(__file__).parent.parent.parent
        done = subprocess.run(
            given, check=False, cwd=root, env=os.environ | {"PYTHONPATH": f"{root}/src:{root}"}
        )
        assert done.returncode == -signal.SIGKILL
    else:
        with Store.open(home / "store.db") as store:
            for version in versions:
                publish(store, version)
    return home


def head_path(home: Path) -> str | None:
    with Store.open(home / "store.db") as store, store.read() as conn:
        return policies.head(conn).path


def refusal(home: Path) -> str:
    """The message with which the store is not opened, by those who may create it and by those who only read."""
    said = []
    for create in (True, False):
        with pytest.raises(StoreError) as caught:
            Store.open(home / "store.db", create=create).close()
        said.append(str(caught.value))
    assert said[0] == said[1]
    return said[0]


def test_a_moved_home_and_a_copy_read_their_own_folders(tmp_path: Path) -> None:
    home = make_home(tmp_path / "first", 1)
    copy, moved = tmp_path / "copy", tmp_path / "other" / "moved"
    shutil.copytree(home, copy)
    moved.parent.mkdir()
    home.rename(moved)
    assert head_path(copy) == str(folder_of(copy, 1))
    assert head_path(moved) == str(folder_of(moved, 1))


def test_absolute_paths_of_an_earlier_store_are_resolved_below_the_home(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", 1)
    with Store.open(home / "store.db") as store, store.write() as conn:
        conn.exec_driver_sql(
            "UPDATE policies SET path = '/home/user/policies/000001-0123abcd' WHERE version"
        )
    assert head_path(home) == str(folder_of(home, 1))


def test_a_folder_of_versions_on_another_disk_is_used(tmp_path: Path) -> None:
    home, disk = tmp_path / "home", tmp_path / "disk"
    home.mkdir()
    disk.mkdir()
    (home / "policies").symlink_to(disk)
    with Store.open(home / "store.db") as store:
        publish(store, 1)
        with store.write() as conn:
            lease = leases.acquire(conn, "train", "me", 30.0, 100.0)
            assert lease is not None
            policies.publish(
                conn, lease, replace(policy(2, 1), path=str(disk / "000002-0123abcd")), [], 100.0
            )
    assert head_path(home) == str(home / "policies" / "000002-0123abcd")


@pytest.mark.parametrize("left", ["versions", "gateway", "log"])
def test_a_deleted_store_is_not_replaced(tmp_path: Path, left: str) -> None:
    home = make_home(tmp_path / "home", *((1,) if left == "versions" else ()), killed=left == "log")
    if left == "gateway":
        (home / "gateway.json").write_text("{}")
    (home / "store.db").unlink()
    words = {"versions": "policies", "gateway": "gateway.json", "log": "store.db-wal"}[left]
    assert words in refusal(home)
    (home / "store.db").touch()
    assert "is empty" in refusal(home)
    assert (home / "store.db").stat().st_size == 0


def test_a_deleted_write_ahead_log_is_reported(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", 1, 2, killed=True)
    (home / "store.db-wal").rename(tmp_path / "kept")
    assert "store.db-wal was deleted" in refusal(home)
    (tmp_path / "kept").rename(home / "store.db-wal")
    assert head_path(home) == str(folder_of(home, 2))


def test_the_advice_to_continue_without_the_log_works(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", 1)
    (home / "store.db-shm").touch()
    assert "delete store.db-shm" in refusal(home)
    (home / "store.db-shm").unlink()
    assert head_path(home) == str(folder_of(home, 1))


def test_a_store_that_is_older_than_its_versions_is_reported(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", 1)
    folder_of(home, 2).mkdir()  # as a trainer leaves it that dies before it publishes
    assert head_path(home) == str(folder_of(home, 1))
    folder_of(home, 3).mkdir()
    with pytest.raises(StoreError, match=r"newest version is 1, but .* has version 3"):
        Store.open(home / "store.db")
    Store.open(home / "store.db", create=False).close()


def test_a_new_home_may_begin_with_a_key(tmp_path: Path) -> None:
    (tmp_path / "api_key").write_text("a key of the owner\n")
    (tmp_path / "policies").mkdir()
    Store.open(tmp_path / "store.db").close()
