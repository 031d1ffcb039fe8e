"""Ends the processes of an episode and removes its folder, also after the runner was killed.

A process belongs to the episode if its environment has `EPISODE_FOLDER` with the episode's folder, or if its working
folder is there: also one that left the process group. Without /proc (macOS), the process group alone is killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

FOLDER_VARIABLE = "EPISODE_FOLDER"
_PROC = Path("/proc")
_LEAST_PARTS = 3  # of the path of a folder: "/", a folder for such folders, its name
# Seconds; a process that forks while it is looked for is found in a later round.
_ROUNDS = 100
_PAUSE = 0.02


def remove_leftovers(folder: str, group: int | None = None) -> bool:
    """Kill every process of the episode, then remove its folder. Return whether nothing is left.

    `group`: id of the process group, if it is known that it was not used again.
    """
    return kill_processes(folder, group) and _remove_folder(folder)


def kill_processes(folder: str, group: int | None = None) -> bool:
    """Kill the process group and every other process of the episode. Return whether none is left."""
    if group is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for _ in range(_ROUNDS):
        pids = find_processes(folder)
        if not pids:
            return True
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE)
    return False


def find_processes(folder: str) -> list[int]:
    """Return the ids of the running processes of the episode; none without /proc.

    Raises `ValueError` if `folder` is no folder of an episode: every process works in "/".
    """
    path = Path(folder)
    if not path.is_absolute() or len(path.parts) < _LEAST_PARTS:
        raise ValueError(f"expected the absolute path of an episode's folder, got {folder!r}")
    marker = os.fsencode(f"{FOLDER_VARIABLE}={folder}")
    return [pid for pid in _other_processes() if _belongs(pid, marker, folder)]


def _other_processes() -> list[int]:
    """Return the ids of all processes but this one; none without /proc."""
    try:
        names = [entry.name for entry in os.scandir(_PROC)]
    except OSError:
        return []
    pids = {int(name) for name in names if name.isdigit()}
    return sorted(pids - {os.getpid()})


def _belongs(pid: int, marker: bytes, folder: str) -> bool:
    at = _PROC / str(pid)
    with contextlib.suppress(OSError):
        if marker in (at / "environ").read_bytes().split(b"\0"):
            return True
    with contextlib.suppress(OSError):
        where = str((at / "cwd").readlink())
        return where == folder or where.startswith(f"{folder}/")
    return False


def _remove_folder(folder: str) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    # A program may have left folders that nobody may write.
    if os.path.lexists(folder):
        for parent, _, _ in os.walk(folder):
            with contextlib.suppress(OSError):
                Path(parent).chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)
    return not os.path.lexists(folder)
