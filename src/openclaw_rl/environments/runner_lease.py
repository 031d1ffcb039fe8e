"""Leases of running episodes: what a runner that was killed has left, so that it can be cleaned up.

A runner keeps the lock of its folder, `<home>/environments/runners/<run>`, while it lives; each running episode is a
file there. The kernel releases the lock when the process ends, whatever ends it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from openclaw_rl.errors import OpenClawError

_LOCK_NAME = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLease:
    """A running episode, and the folder by which its processes are found.

    `expires_at`: seconds since the epoch, by when the gateway ends the episode in any case; 0: it does not know it.
    """

    episode: str
    folder: str
    expires_at: float = 0.0


class LeaseFolder:
    """The leases of one runner that lives."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add_lease(self, lease: EpisodeLease) -> None:
        """Record an episode, before anything of it exists."""
        temporary = self.path / f".{lease.episode}"
        temporary.write_text(json.dumps(asdict(lease)), encoding="utf-8")
        temporary.replace(self._file(lease.episode))

    def remove_lease(self, episode: str) -> None:
        self._file(episode).unlink(missing_ok=True)

    def read_leases(self) -> list[EpisodeLease]:
        """Return the recorded episodes. A file that was not complete is of an episode that did not begin."""
        return [
            EpisodeLease(**json.loads(file.read_text(encoding="utf-8")))
            for file in self.path.glob("*.json")
        ]

    def _file(self, episode: str) -> Path:
        return self.path / f"{episode}.json"


@contextmanager
def hold_leases(home: Path, run: str) -> Iterator[LeaseFolder]:
    """Yield the lease folder of a run, locked. Raises `OpenClawError` if another process runs it now."""
    folder = lease_folder(home, run)
    file = _lock_folder(folder)
    if file is None:
        raise OpenClawError(
            f"run {run}: another process runs it now. Wait for it, or choose another --run"
        )
    with file:
        try:
            yield LeaseFolder(folder)
        finally:
            _remove_if_empty(folder)


@contextmanager
def take_over_leases(home: Path) -> Iterator[list[LeaseFolder]]:
    """Yield the lease folders of the runners that have ended without cleaning up, locked until the block ends."""
    runners = _runners_folder(home)
    folders = sorted(runners.iterdir()) if runners.is_dir() else []
    files: list[IO[str]] = []
    taken: list[LeaseFolder] = []
    try:
        for folder in folders:
            file = _lock_folder(folder)
            if file is not None:
                files.append(file)
                taken.append(LeaseFolder(folder))
        yield taken
        for leases in taken:
            _remove_if_empty(leases.path)
    finally:
        for file in files:
            file.close()


def lease_folder(home: Path, run: str) -> Path:
    """Return the folder of a run's leases. It exists while the run has a runner or leases."""
    return _runners_folder(home) / run


def _runners_folder(home: Path) -> Path:
    return home / "environments" / "runners"


def _remove_if_empty(folder: Path) -> None:
    """Remove a locked folder that has no lease."""
    if not any(folder.glob("*.json")):
        shutil.rmtree(folder, ignore_errors=True)


def _lock_folder(folder: Path) -> IO[str] | None:
    """Return the lock file of a folder, locked, or None if another process holds it."""
    while True:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            file = (folder / _LOCK_NAME).open("a", encoding="utf-8")
        except FileNotFoundError:
            # Its runner has just ended.
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        if _is_current(file, folder / _LOCK_NAME):
            return file
        file.close()


def _is_current(file: IO[str], path: Path) -> bool:
    """Return whether the path still names this file: the last holder may have removed it with its folder."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
