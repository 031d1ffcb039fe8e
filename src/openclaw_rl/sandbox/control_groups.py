"""Limits of memory and processes by Linux control groups, where this user can make some (version 2, else version 1)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox.box import BoxLimits

MOUNT = Path("/sys/fs/cgroup")
NAME_PREFIX = "openclaw-rl-box-"
_LIMIT_FILES: dict[int, dict[str, tuple[str, ...]]] = {
    2: {"memory": ("memory.max",), "pids": ("pids.max",)},
    1: {"memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), "pids": ("pids.max",)},
}
# Seconds until processes that were killed have left their group.
_REMOVAL_SECONDS = 2.0
# Seconds after which an empty group without a lease belongs to nobody.
_ABANDONED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class GroupParents:
    """Folders below which groups can be made. `version`: 1 or 2; `folders`: controller -> folder, empty if none."""

    version: int
    folders: dict[str, Path]


def find_parents(mount: Path = MOUNT, membership: Path = Path("/proc/self/cgroup")) -> GroupParents:
    """Return where this process can make groups. Version 2: beside its own group, as that has processes."""
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        # Not Linux.
        return GroupParents(2, {})
    for _, controllers, path in lines:
        # Version 2 has one hierarchy, whose line names no controllers.
        if controllers == "":
            beside = mount
            if path != "/":
                beside = (mount / path.lstrip("/")).parent
            parents = _enabled_parents(beside)
            if parents:
                return GroupParents(2, parents)
    paths: dict[str, str] = {}
    for _, controllers, path in lines:
        for name in controllers.split(","):
            paths[name] = path
    folders: dict[str, Path] = {}
    for name in _LIMIT_FILES[1]:
        if name in paths:
            folder = mount / name / paths[name].lstrip("/")
            if _is_writable(folder):
                folders[name] = folder
    return GroupParents(1, folders)


def _enabled_parents(folder: Path) -> dict[str, Path]:
    """Return the folder by each controller of version 2 that is enabled for its groups; none if it is not writable."""
    file = folder / "cgroup.subtree_control"
    if not file.exists() or not _is_writable(folder):
        return {}
    enabled = file.read_text().split()
    return {name: folder for name in _LIMIT_FILES[2] if name in enabled}


def _is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)


def plan_groups(parents: GroupParents, name: str) -> list[Path]:
    """Return the folders of the groups of a box."""
    return sorted({folder / f"{NAME_PREFIX}{name}" for folder in parents.folders.values()})


def make_groups(parents: GroupParents, name: str, limits: BoxLimits) -> set[str]:
    """Make the groups of a box and set their limits. Returns the controllers that hold, of `memory` and `pids`."""
    values = {"memory": limits.memory, "pids": limits.processes}
    limited = set()
    for controller, parent in parents.folders.items():
        group = parent / f"{NAME_PREFIX}{name}"
        try:
            group.mkdir(exist_ok=True)
            for number, file in enumerate(_LIMIT_FILES[parents.version][controller]):
                with contextlib.suppress(FileNotFoundError) if number else contextlib.nullcontext():
                    _write_file(group / file, str(values[controller]))
            if parents.version == 2 and controller == "memory":
                # A kernel without swap accounting.
                with contextlib.suppress(FileNotFoundError):
                    _write_file(group / "memory.swap.max", "0")
        except OSError:
            # A group was delegated in part, or the file system is read-only.
            continue
        limited.add(controller)
    return limited


def add_processes(groups: list[Path], pids: list[int]) -> None:
    """Move processes to existing groups; what they start later is in them, too.

    Raises `SandboxError` if a group is gone: its limits would not hold.
    """
    for group in groups:
        for pid in pids:
            try:
                _write_file(group / "cgroup.procs", str(pid))
            except FileNotFoundError as error:
                raise SandboxError(
                    f"the control group {group} was removed while the box was opened"
                ) from error
            except ProcessLookupError:
                # It has ended.
                continue


def process_tree(pid: int) -> list[int]:
    """Return a process and all its descendants, without those that have ended."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(below for child in children for below in process_tree(int(child)))]


def remove_groups(groups: list[Path]) -> bool:
    """Kill what is left in the groups and remove them. Return whether all are gone.

    A process that was killed needs a moment of processor time to end, and longer than this waits on a busy machine.
    """
    until = time.monotonic() + _REMOVAL_SECONDS
    for group in groups:
        while group.is_dir():
            with contextlib.suppress(OSError):
                for pid in (group / "cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            if time.monotonic() > until:
                break
            time.sleep(0.005)
    return not any(group.is_dir() for group in groups)


def remove_abandoned(parents: GroupParents, leased: Collection[str]) -> None:
    """Remove the groups of boxes that have no lease and hold no process. `leased`: names of the boxes with a lease.

    They are left if the folder of a lease was removed by other means, such as a cleaner of temporary files.
    """
    for parent in set(parents.folders.values()):
        for group in parent.glob(f"{NAME_PREFIX}*"):
            # It holds processes, or another owner is removing it.
            with contextlib.suppress(OSError):
                age = time.time() - group.stat().st_mtime
                if group.name.removeprefix(NAME_PREFIX) not in leased and age > _ABANDONED_SECONDS:
                    group.rmdir()


def _write_file(path: Path, value: str) -> None:
    """Write without creating: in a control group, a missing file means a missing controller."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)
