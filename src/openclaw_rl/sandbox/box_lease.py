"""Leases of boxes: a locked folder for each box, so that what a dead owner left is found and removed.

The processes of a box and its files (in memory) end with their owner by themselves. The folder of its pipes and its
control groups stay; the kernel releases the lock of a dead owner, and the next owner removes them. A lease whose
control groups cannot be removed yet is kept for the next owner, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox.box import BoxLimits
from openclaw_rl.sandbox.control_groups import (
    GroupParents,
    add_processes,
    find_parents,
    make_groups,
    plan_groups,
    remove_abandoned,
    remove_groups,
)

LOCK_FILE = "lock"
GROUPS_FILE = "control_groups"
# Seconds after which a folder without a lock belongs to nobody.
_UNLOCKED_SECONDS = 60.0


def leases_folder() -> Path:
    """Return the folder of all leases of this user, made if it is missing. Raises `SandboxError` if others can write.

    Boxes of root run as another user, who must be able to pass through the folder, but not to list it.
    """
    user = os.geteuid()
    folder = _leases_path()
    folder.mkdir(mode=0o711, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user or status.st_mode & 0o022:
        raise SandboxError(
            f"{folder} belongs to another user or others can write to it: remove it, or set TMPDIR"
        )
    return folder


def _leases_path() -> Path:
    return Path(tempfile.gettempdir()) / f"openclaw-rl-boxes-{os.geteuid()}"


@dataclass(slots=True)
class BoxLease:
    """The folder of one box, locked while its owner lives. `box_user`: user of this machine that the box runs as."""

    folder: Path
    box_user: int
    _lock: int

    @classmethod
    def acquire(cls, box_user: int) -> BoxLease:
        folder = leases_folder() / secrets.token_hex(8)
        folder.mkdir(mode=0o711)
        begun = folder / f".{LOCK_FILE}"
        lock = os.open(begun, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Locked when it appears: a sweep takes what it can lock.
        begun.rename(folder / LOCK_FILE)
        return cls(folder, box_user, lock)

    def write_groups(self, groups: list[Path]) -> None:
        """Note the control groups before they are made."""
        (self.folder / GROUPS_FILE).write_text("\n".join(map(str, groups)))

    def release(self) -> None:
        """Remove the control groups and the folder, or leave both to the next owner. May be called again."""
        if self._lock >= 0:
            _remove_lease(self.folder)
            os.close(self._lock)
            self._lock = -1


@cache
def usable_parents() -> GroupParents:
    """Return where this process can make control groups and move processes to them, tried once with one process."""
    parents = find_parents()
    lease = BoxLease.acquire(os.geteuid())
    groups = plan_groups(parents, lease.folder.name)
    lease.write_groups(groups)
    with subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env={}
    ) as process:
        try:
            make_groups(parents, lease.folder.name, BoxLimits())
            add_processes([group for group in groups if group.exists()], [process.pid])
        except OSError:
            return GroupParents(parents.version, {})
        finally:
            process.kill()
            lease.release()
    return parents


@contextlib.contextmanager
def leased_folder() -> Iterator[Path]:
    """Yield a new temporary folder; the next owner of a box removes it if this process is killed meanwhile."""
    lease = BoxLease.acquire(os.geteuid())
    try:
        lease.folder.chmod(0o700)
        yield lease.folder
    finally:
        lease.release()


def sweep_leases() -> int:
    """Remove what dead owners left; return the number of leases that were removed."""
    removed = 0
    for folder in _list_leases():
        # Another owner is removing it, or it is in use.
        with contextlib.suppress(OSError):
            removed += _sweep_lease(folder)
    remove_abandoned(find_parents(), {folder.name for folder in _list_leases()})
    return removed


def _list_leases() -> list[Path]:
    return list(leases_folder().iterdir()) if _leases_path().exists() else []


@cache
def sweep_once() -> None:
    """Remove what dead owners left, the first time in this process that a box is opened."""
    sweep_leases()


def _sweep_lease(folder: Path) -> bool:
    try:
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return time.time() - folder.stat().st_mtime > _UNLOCKED_SECONDS and _remove_lease(folder)
    try:
        # BlockingIOError: its owner lives.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _kill_half_open(folder.name)
        return _remove_lease(folder)
    finally:
        os.close(lock)


def _kill_half_open(name: str) -> None:
    """Kill the bubblewrap processes of a box.

    If its first process is killed between two of its first steps, the second one waits for it for ever.
    """
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        # It has ended, or belongs to another user.
        with contextlib.suppress(OSError):
            arguments = file.read_bytes().split(b"\0")
            if Path(os.fsdecode(arguments[0])).name == "bwrap" and name.encode() in arguments:
                os.kill(int(file.parent.name), signal.SIGKILL)


def _remove_lease(folder: Path) -> bool:
    """Remove the control groups, then the folder, which names them. Return whether that was possible."""
    groups = folder / GROUPS_FILE
    if groups.exists() and not remove_groups(
        [Path(line) for line in groups.read_text().splitlines()]
    ):
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return True
