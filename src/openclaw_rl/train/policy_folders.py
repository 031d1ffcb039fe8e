"""Policy folders on disk: new names, removal of folders that a dead trainer left, and pruning of old states."""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

from openclaw_rl.common.policy_digest import MODEL_CONFIG, WEIGHT_FILES, weight_files
from openclaw_rl.types import Policy

log = logging.getLogger(__name__)
OPTIMIZER_FILE = "optimizer.state"  # only needed to continue training from that version
EMA_TEACHER_FILE = "average.state"  # the EMA teacher, as large as the weights
KEPT_FULL_OPTIMIZERS = 2  # number of newest full models whose optimizer states are kept
META_FILE = "checkpoint.json"  # metadata of the checkpoint that a version was copied from (see `checkpoints`)
KEPT_WHEN_PRUNED = (MODEL_CONFIG, "trainer.json", META_FILE)  # these identify a pruned full model


def new_folder(root: Path, version: int) -> Path:
    """Return a unique folder path. Two trainers may both believe that they make the same version."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    return root / f"{version:06d}-{uuid.uuid4().hex[:8]}"


def remove_folder(folder: Path) -> None:
    """Remove a folder that was not published."""
    shutil.rmtree(folder, ignore_errors=True)


def remove_orphans(root: Path, policies: Iterable[Policy], *, before: float) -> list[str]:
    """Remove the folders that no policy refers to, and return their names.

    Only folders last modified before `before`, the time at which the lease was acquired, are removed. A newer folder
    may belong to the next holder, in case this process was suspended since.
    """
    named = {Path(p.path).name for p in policies if p.path}
    orphans = [
        path
        for path in (root.iterdir() if root.is_dir() else ())
        if path.is_dir() and path.name not in named and path.stat().st_mtime < before
    ]
    for path in orphans:
        log.info("removing %s: no policy refers to it (its trainer died before it was published)", path)
        shutil.rmtree(path, ignore_errors=True)
    return sorted(path.name for path in orphans)


def prune(root: Path, *, keep: int, spare: Iterable[str | None]) -> None:
    """Delete state that is only needed to continue training from old versions.

    The newest `keep` folders and those in `spare` keep their state. Of the others only adapters stay: the weights of a
    full model are as large as the base. Its optimizer state is six times as large, so only the newest two keep theirs.
    """
    spared = {Path(path).name for path in spare if path}
    newest_first = sorted((path for path in root.iterdir() if path.name[0] != "."), key=lambda p: p.name, reverse=True)
    for place, path in enumerate(newest_first):
        full = (path / MODEL_CONFIG).exists() and weight_files(path) != WEIGHT_FILES
        if path.name in spared or place < (min(keep, KEPT_FULL_OPTIMIZERS) if full else keep):
            continue
        for name in (OPTIMIZER_FILE, *((EMA_TEACHER_FILE,) if full else ())):
            (path / name).unlink(missing_ok=True)
        if full and place >= keep:
            for file in path.iterdir():
                if file.name not in KEPT_WHEN_PRUNED:
                    file.unlink()
