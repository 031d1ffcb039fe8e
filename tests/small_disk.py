"""A small file system that a test can fill, and the program that fills it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.faults.small_disk import SmallDisk

BALLAST = "ballast"


@contextlib.contextmanager
def mount_small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount a file system of this size at a new folder; skip the test where this user may not mount."""
    try:
        disk = SmallDisk(folder, megabytes * 2**20)
    except PermissionError as error:
        pytest.skip(f"NOT CHECKED: {error}")
    try:
        yield folder
    finally:
        disk.unmount()


def fill(folder: Path, *, leave: int = 0) -> None:
    """Fill the file system up to the last block. A later call takes the blocks that became free since.

    `leave`: bytes that stay free.
    """
    with (folder / BALLAST).open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while not leave or shutil.disk_usage(folder).free > leave:
            file.write(os.urandom(4096))


def free(folder: Path) -> None:
    """Remove what `fill` wrote."""
    (folder / BALLAST).unlink()
