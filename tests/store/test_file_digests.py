"""Digests of files: computed once for each file, outside of transactions, by one process at a time."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from openclaw_rl.common.policy_digest import digest_of_file
from openclaw_rl.errors import ModelError, StartStopped
from openclaw_rl.store import file_digests, heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.store.file_digests import DigestProgress, FileState, copy_digests, digest_files

LARGE = 2**30
"""Bytes of a sparse file that takes no space, and longer to hash than a process takes to start."""


def sparse_file(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path


def was_hashed(store: Store, path: Path) -> bool:
    """Return whether this call had to hash the file."""
    reports: list[DigestProgress] = []
    assert digest_files(store, [path], report=reports.append) == {
        path: sha256(path.read_bytes()).digest()
    }
    return bool(reports)


def test_a_file_is_hashed_once_and_again_after_a_change(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    assert was_hashed(store, path)
    assert not was_hashed(store, path)
    path.write_bytes(b"two")
    assert was_hashed(store, path)
    fresh = tmp_path / "fresh"
    fresh.write_bytes(b"one")
    os.utime(fresh, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    fresh.replace(path)  # the same size and time of the last change, but another file
    assert was_hashed(store, path)
    with Store.open(store.path) as reopened:
        assert not was_hashed(reopened, path)


def test_digests_of_a_link_are_those_of_its_target(store: Store, tmp_path: Path) -> None:
    first, second, link = tmp_path / "first", tmp_path / "second", tmp_path / "link"
    first.write_bytes(b"1")
    second.write_bytes(b"2")
    link.symlink_to(first)
    assert was_hashed(store, first)
    assert not was_hashed(store, link)
    link.unlink()
    link.symlink_to(second)
    assert was_hashed(store, link)


def test_several_files_have_one_progress(store: Store, tmp_path: Path) -> None:
    paths = [sparse_file(tmp_path / name, 2**20) for name in "abcdef"]
    reports: list[DigestProgress] = []
    digests = digest_files(store, paths, report=reports.append)
    assert digests == dict.fromkeys(paths, sha256(bytes(2**20)).digest())
    assert reports[-1] == DigestProgress(pid=os.getpid(), done=6 * 2**20, total=6 * 2**20)
    assert [report.done for report in reports] == sorted(report.done for report in reports)


def test_the_store_can_be_written_during_the_hashing(store: Store, tmp_path: Path) -> None:
    """The reports write heartbeats from a connection of their own: no transaction is open meanwhile."""
    path = sparse_file(tmp_path / "weights", 2**20)
    digest_files(store, [path], report=file_digests.heartbeat_reporter(store, "train"))
    with store.read() as conn:
        beat = next(beat for beat in heartbeats.read_heartbeats(conn) if beat.name == "train")
    assert beat.state == heartbeats.STARTING
    assert beat.note == "hashing weights: 0.0 of 0.0 GiB"


def test_a_missing_file_is_named(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"absent: cannot be read \(No such file"):
        digest_files(store, [tmp_path / "absent"])


def test_a_file_that_keeps_changing_is_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"0")
    states = iter(range(100))
    of_file = FileState.of_file

    def changed(path: Path) -> FileState:
        path.write_bytes(b"0" * next(states))
        return of_file(path)

    monkeypatch.setattr(FileState, "of_file", staticmethod(changed))
    with pytest.raises(ModelError, match="changes while it is read"):
        digest_files(store, [path])


def test_a_stop_ends_the_hashing(store: Store, tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "weights", 64 * LARGE)
    with pytest.raises(StartStopped):
        digest_files(store, [path], should_stop=lambda: True)


def test_a_stop_ends_the_wait_for_another_process(store: Store, tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "weights", 1)
    with store.path.with_name(file_digests.LOCK_FILE).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(StartStopped):
            digest_files(store, [path], should_stop=lambda: True)


def test_a_holder_without_progress_is_not_waited_for(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be suspended in a terminal, and hold the lock for ever."""
    monkeypatch.setattr(file_digests, "STALLED_SECONDS", 0.0)
    with store.path.with_name(file_digests.LOCK_FILE).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert was_hashed(store, sparse_file(tmp_path / "weights", 1))


def test_digests_are_copied_to_another_home(store: Store, tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "weights", 1)
    assert was_hashed(store, path)
    (tmp_path / "other").mkdir()
    with Store.open(tmp_path / "other" / "store.db") as other:
        copy_digests(store, other)
        assert not was_hashed(other, path)


def start_hashing(store: Store, path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.store.hash_weights", str(store.path), str(path)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )


def read_lines(process: subprocess.Popen[str]) -> list[str]:
    output, _ = process.communicate(timeout=300)
    return output.splitlines()


def test_processes_that_start_together_hash_once(store: Store, tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "weights", LARGE)
    processes = [start_hashing(store, path) for _ in range(3)]
    outputs = [read_lines(process) for process in processes]
    by = {line for output in outputs for line in output if line.startswith("hashed by")}
    assert len(by) == 1
    assert len({output[-1] for output in outputs}) == 1
    assert outputs[0][-1].startswith("digest ")


def test_another_process_takes_over_from_one_that_is_killed(store: Store, tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "weights", LARGE)
    first = start_hashing(store, path)
    assert first.stdout is not None
    assert first.stdout.readline() == "ready\n"
    assert first.stdout.readline() == f"hashed by {first.pid}\n"
    first.send_signal(signal.SIGSTOP)
    second = start_hashing(store, path)
    assert second.stdout is not None
    assert second.stdout.readline() == "ready\n"
    assert second.stdout.readline() == f"hashed by {first.pid}\n"  # it waits, and says for whom
    first.kill()
    output = read_lines(second)
    assert f"hashed by {second.pid}" in output
    assert output[-1].startswith("digest ")
    read_lines(first)


def test_holes_of_a_sparse_file_count_as_zeros(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    for size in (0, 1, 2**22, 2**23 + 5):
        sparse_file(path, size)
        assert digest_of_file(path) == sha256(bytes(size)).digest()
    with path.open("r+b") as file:
        for position in (4096, 2**22 - 1, 2**23):
            file.seek(position)
            file.write(b"data")
    assert digest_of_file(path) == sha256(path.read_bytes()).digest()
