"""Folders that are whole or not there at all, whenever the process or the machine stops."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path


def write_folder(out: Path, files: Mapping[str, bytes], fill: Callable[[Path], None] | None = None) -> None:
    """Write beside `out`, sync every file and the folder, then rename into place. Raises `FileExistsError`.

    `fill` writes what is too large to be handed over as bytes into the folder that it is given.
    """
    if out.exists():
        raise FileExistsError(f"{out}: there already; such a folder is written once")
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True, mode=0o700)
    if fill is not None:
        fill(temporary)
    for name, raw in files.items():
        (temporary / name).write_bytes(raw)
    for file in temporary.iterdir():
        sync(file)
    sync(temporary)
    temporary.rename(out)
    sync(out.parent)


def sync(path: Path) -> None:
    """What was written there is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def linked(source: Path, into: Path, *, but: str | None = None) -> None:
    """The files of one folder in another, less `but`: hard links where the file system has them, else copies.

    Only for files that nobody changes in place.
    """
    for file in source.iterdir():
        if not file.is_file() or file.name == but:
            continue
        try:
            os.link(file, into / file.name)
        except OSError:  # another file system, or one without links
            shutil.copy2(file, into / file.name)


def point(link: Path, name: str) -> None:
    """A symbolic link beside `name`, in the place of the one before in one go."""
    fresh = link.with_name(f".{link.name}.tmp")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(name)
    fresh.replace(link)
    sync(link.parent)
