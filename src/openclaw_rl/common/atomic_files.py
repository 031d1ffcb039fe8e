"""Checks of configured folders, and atomic, durable writing of folders and symbolic links."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from openclaw_rl.errors import ConfigError


def ensure_folder(setting: str, path: str | Path, *, written: bool = True) -> Path:
    """Return the absolute folder of a setting, created if missing. `written`: write access is needed, too.

    Raises `ConfigError` if this user cannot create, read or (with `written`) write it.
    """
    folder = Path(path).expanduser()
    try:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(0, "this is a file")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Can it be read?
        next(folder.iterdir(), None)
        if written:
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        reason = error.strerror or error
        what = "read and write" if written else "read"
        raise ConfigError(
            f"{setting} {folder}: {reason}. Expected a folder that this user can {what} or create. "
            f"Choose another {setting}"
        ) from error
    return folder.resolve()


def write_folder(
    out: Path, files: Mapping[str, bytes], fill: Callable[[Path], None] | None = None
) -> None:
    """Write a folder beside `out`, sync its files and itself, then rename it to `out`: it is complete or missing.

    `fill` writes files that are too large for `files` into the folder. Raises `FileExistsError` if `out` exists.
    """
    if out.exists():
        raise FileExistsError(f"{out} exists already; such a folder is written once")
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True, mode=0o700)
    try:
        if fill is not None:
            fill(temporary)
        for name, raw in files.items():
            (temporary / name).write_bytes(raw)
        for file in temporary.iterdir():
            sync_path(file)
        sync_path(temporary)
    except BaseException:
        # Such as a full disk, which must not lose more space, or Ctrl-C.
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    temporary.rename(out)
    sync_path(out.parent)


def sync_path(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_files(source: Path, into: Path, *, but: str | None = None) -> None:
    """Hard-link the files of a folder, except `but`, into another; copy them where links are not possible.

    Use it only for files that are never changed in place.
    """
    for file in source.iterdir():
        if not file.is_file() or file.name == but:
            continue
        try:
            os.link(file, into / file.name)
        except OSError:
            # Another file system, or one without links.
            shutil.copy2(file, into / file.name)


def replace_symlink(link: Path, name: str) -> None:
    """Point the symbolic link at `name` in its own folder; an existing link is replaced atomically."""
    fresh = link.with_name(f".{link.name}.tmp")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(name)
    fresh.replace(link)
    sync_path(link.parent)


def write_text_file(path: Path, text: str) -> None:
    """Write a file in one step: after a crash it has the old text or the new one."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    sync_path(part)
    part.replace(path)
    sync_path(path.parent)
