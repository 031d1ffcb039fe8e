"""Policy folders on disk: their names, and the removal of folders that no version has."""

from __future__ import annotations

import logging
import os
import re
import shutil
import uuid
from collections.abc import Collection
from pathlib import Path

from openclaw_rl.types import Policy

log = logging.getLogger(__name__)
# Metadata of the checkpoint that a version was copied from (see `checkpoints`).
META_FILE = "checkpoint.json"
_FOLDER_NAME = re.compile(r"(\d{6,})-\w+")


def new_folder(root: Path, version: int) -> Path:
    """Return a unique folder path. Two trainers may both believe that they make the same version."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    return root / f"{version:06d}-{uuid.uuid4().hex[:8]}"


def versions_on_disk(root: Path) -> list[int]:
    """Return the numbers of the versions that have a folder, oldest first."""
    if not root.is_dir():
        return []
    with os.scandir(root) as entries:
        matches = [_FOLDER_NAME.fullmatch(entry.name) for entry in entries]
    return sorted({int(match[1]) for match in matches if match is not None})


def has_metadata(policy: Policy) -> bool:
    """Return whether a version was copied from a checkpoint."""
    return is_copied_folder(policy.path)


def is_copied_folder(path: str | None) -> bool:
    """Return whether the folder of a version was copied from a checkpoint; None: the base, which has no folder."""
    return path is not None and (Path(path) / META_FILE).exists()


def folder_bytes(path: str | None) -> int:
    """Return the size of a policy folder in bytes, which the next one will have, too; 0 for the base."""
    if path is None or not Path(path).is_dir():
        return 0
    return sum(file.stat().st_size for file in Path(path).iterdir())


def remove_folder(folder: Path) -> None:
    """Remove a folder that was not published."""
    shutil.rmtree(folder, ignore_errors=True)


def _unnamed_folders(root: Path, named: Collection[str]) -> list[Path]:
    with os.scandir(root) as entries:
        return [Path(entry) for entry in entries if entry.name not in named and entry.is_dir()]


def remove_orphans(root: Path, folders: Collection[str], *, before: float) -> list[str]:
    """Remove the folders that no version has, and return their names. `folders`: those of versions, as paths.

    Only folders last modified before `before`, the time at which the lease was acquired, are removed. A newer folder
    may belong to the next holder, in case this process was suspended since.
    """
    if not root.is_dir():
        return []
    unnamed = _unnamed_folders(root, {folder.rpartition("/")[2] for folder in folders})
    orphans = [path for path in unnamed if path.stat().st_mtime < before]
    for path in orphans:
        log.info(
            "removing %s: no policy refers to it (its trainer died before it was published)", path
        )
        shutil.rmtree(path, ignore_errors=True)
    return sorted(path.name for path in orphans)
