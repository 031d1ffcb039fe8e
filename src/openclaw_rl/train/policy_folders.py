"""The policy folders on disk: names, what a dead trainer left behind, and thinning out old optimizer states."""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

from openclaw_rl.common.policy_digest import MODEL_CONFIG, WEIGHT_FILES, weight_files
from openclaw_rl.types import Policy

log = logging.getLogger(__name__)
HEAVY = "optimizer.state"  # only needed to go on training from that version
AVERAGE = "average.state"  # the teacher, where it follows the policy: as large as the weights
MOMENTS_OF_FULL = 2  # the newest whole models whose optimizer states are kept
NOTE = "checkpoint.json"  # of a version that began as a checkpoint: what that was (see `checkpoints`)
REMAINS = (MODEL_CONFIG, "trainer.json", NOTE)  # of a whole model that was thinned out: what says that it was one


def fresh(root: Path, version: int) -> Path:
    """A folder name that nobody else uses: two trainers may both believe that they make the same version."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    return root / f"{version:06d}-{uuid.uuid4().hex[:8]}"


def remove(folder: Path) -> None:
    """A folder that was not published."""
    shutil.rmtree(folder, ignore_errors=True)


def remove_orphans(root: Path, policies: Iterable[Policy], *, before: float) -> list[str]:
    """Remove the folders that no policy names. Returns their names.

    Only those last touched before `before`, the time at which the lease was taken: what is newer may belong to the next
    holder, should this process have been frozen in between.
    """
    named = {Path(p.path).name for p in policies if p.path}
    orphans = [
        path
        for path in (root.iterdir() if root.is_dir() else ())
        if path.is_dir() and path.name not in named and path.stat().st_mtime < before
    ]
    for path in orphans:
        log.info("removing %s: no policy names it (its trainer died before it was published)", path)
        shutil.rmtree(path, ignore_errors=True)
    return sorted(path.name for path in orphans)


def thin(root: Path, *, keep: int, spare: Iterable[str | None]) -> None:
    """Let go of what is only needed to go on from old versions: all but the newest `keep` and those in `spare`.

    Optimizer states go, adapters stay. A whole model costs as much as the base, so of these the weights go, too, and
    optimizer states, six times as large, are kept for the newest two.
    """
    spared = {Path(path).name for path in spare if path}
    newest_first = sorted((path for path in root.iterdir() if path.name[0] != "."), key=lambda p: p.name, reverse=True)
    for place, path in enumerate(newest_first):
        full = (path / MODEL_CONFIG).exists() and weight_files(path) != WEIGHT_FILES
        if path.name in spared or place < (min(keep, MOMENTS_OF_FULL) if full else keep):
            continue
        for name in (HEAVY, *((AVERAGE,) if full else ())):
            (path / name).unlink(missing_ok=True)
        if full and place >= keep:
            for file in path.iterdir():
                if file.name not in REMAINS:
                    file.unlink()
