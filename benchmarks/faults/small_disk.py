"""A small filesystem of its own (tmpfs), which can be made full and given room again. It needs the right to mount."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

# Bytes; the granularity of a tmpfs.
_PAGE = 4096
_RESIZE_ATTEMPTS = 20


class SmallDisk:
    """A mounted tmpfs of `size` bytes. It takes memory only for what is in it, also while it is full."""

    def __init__(self, folder: Path, size: int) -> None:
        """Raises `PermissionError` if this process may not mount."""
        self.folder = folder
        self._size = size
        folder.mkdir(parents=True, exist_ok=True)
        done = _run_mount("-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(folder))
        if done.returncode:
            raise PermissionError(f"no filesystem can be mounted here: {done.stderr.strip()}")

    def remove_room(self) -> None:
        """Shrink the filesystem to what is in it: every further block fails with "no space left on device".

        A size that is too small, because a file grew meanwhile, is refused; then it is tried again.
        """
        for attempt in range(_RESIZE_ATTEMPTS):
            found = os.statvfs(self.folder)
            size = max((found.f_blocks - found.f_bfree) * found.f_frsize, _PAGE)
            if self._resize(size, check=attempt == _RESIZE_ATTEMPTS - 1):
                return

    def restore_room(self) -> None:
        self._resize(self._size, check=True)

    def _resize(self, size: int, *, check: bool) -> bool:
        """Return whether the size was taken. With `check`, raises `CalledProcessError` if not."""
        return (
            _run_mount("-o", f"remount,size={size}", str(self.folder), check=check).returncode == 0
        )

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], capture_output=True, check=False)


def _run_mount(*arguments: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["mount", *arguments], capture_output=True, text=True, check=check)


@contextlib.contextmanager
def mounted_disks(*folders: Path, size: int = 4 * 2**30) -> Iterator[tuple[SmallDisk, ...]]:
    """Mount a filesystem at each of the folders, in this order. Yields an empty tuple if that is not permitted."""
    disks: list[SmallDisk] = []
    try:
        for folder in folders:
            disks.append(SmallDisk(folder, size))
    except (PermissionError, FileNotFoundError):
        pass
    try:
        yield tuple(disks) if len(disks) == len(folders) else ()
    finally:
        for disk in reversed(disks):
            disk.unmount()
