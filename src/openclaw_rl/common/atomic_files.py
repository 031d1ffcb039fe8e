"""Folders that can be used, and such as are whole or not there at all, whenever the process or the machine stops."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from openclaw_rl.errors import ConfigError


def usable(setting: str, path: str | Path, *, written: bool = True) -> Path:
    """The folder that a setting names, in full; made where it is not there. `written`: not only read from.

    Raises `ConfigError` when this user cannot.
    """
    folder = Path(path).expanduser()
    what = "read and write" if written else "read"
    try:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(0, "this is a file")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        next(folder.iterdir(), None)
        if written:
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(
            f"{setting} {folder}: {why}. Expected a folder that this user can {what}, or room to make one. "
            f"Choose another {setting}"
        ) from error
    return folder.resolve()


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
