"""Full disks: recognising them behind the errors of libraries, and the space that is left."""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from openclaw_rl.errors import DiskFull

RETRY_SECONDS = 1.0
"""Seconds until a worker that met a full disk tries again."""
RESERVE_BYTES = 8 * 2**20
"""Bytes that are left for the ends of running replies: with less space, no request and no step is begun."""
# Seconds for which the last look at a disk counts.
_LOOK_SECONDS = 0.25
_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
# Of libraries that write files themselves (safetensors, pyarrow), and of other processes.
_FULL_WORDS = tuple(
    words
    for number in _FULL_ERRNOS
    for words in (f"[Errno {number}]", f"(os error {number})", f"[errno {number}]")
)
_PROBE_BYTES = 2**16


def free_bytes(folder: Path) -> int | None:
    """Return the bytes that this user may still write to a folder's disk; None if the file system does not say."""
    with contextlib.suppress(OSError):
        usage = shutil.disk_usage(_existing(folder))
        return usage.free if usage.total else None
    return None


def is_full(folder: Path) -> bool:
    """Return whether a small file cannot be written to the folder, because the disk or a quota is full."""
    try:
        with tempfile.TemporaryFile(dir=_existing(folder)) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
    except OSError as error:
        return error.errno in _FULL_ERRNOS
    return False


def require_space(folder: Path, size: int = 0) -> None:
    """Raise `DiskFull` if `size` bytes and the reserve do not fit on the folder's disk."""
    free = free_bytes(folder)
    if free is not None and free < size + RESERVE_BYTES:
        raise DiskFull(
            f"the disk of {folder} is full: {free / 2**20:.1f} MiB are free, and {(size + RESERVE_BYTES) / 2**20:.0f} "
            "MiB are needed. Free some space; work continues by itself"
        )


def to_disk_full(error: BaseException) -> DiskFull | None:
    """Return the error as `DiskFull` if it, or an error that caused it, is of a full disk or quota; else None."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DiskFull):
            return cause
        if _is_disk_full(cause):
            return DiskFull(
                f"the disk is full ({error}). Free some space; work continues by itself"
            )
        cause = _cause_of(cause)
    return None


def _is_disk_full(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in _FULL_ERRNOS:
        return True
    return _has_full_words(error)


def _cause_of(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None:
        return error.__cause__
    return None if error.__suppress_context__ else error.__context__


@contextlib.contextmanager
def raise_disk_full() -> Iterator[None]:
    """Raise errors of a full disk as `DiskFull`; all others pass unchanged."""
    try:
        yield
    except Exception as error:
        # Libraries raise errors of their own for a full disk.
        full = to_disk_full(error)
        if full is None or full is error:
            raise
        raise full from error


def _has_full_words(error: BaseException) -> bool:
    return any(text in str(error) for text in _FULL_WORDS)


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest folder above it that exists."""
    return next((path for path in (folder, *folder.absolute().parents) if path.is_dir()), Path("/"))


class DiskMonitor:
    """Whether the disk of a folder has space for new work. Cheap: the disk is looked at a few times a second at most.

    A quota of the user is not visible in the size of a disk, so a failed write counts as a full disk, too.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._problem: DiskFull | None = None
        # Monotonic seconds.
        self._valid_until = float("-inf")

    def record_failure(self, error: DiskFull) -> None:
        """Record that a write failed; the disk counts as full for `RETRY_SECONDS`."""
        self._problem = error
        self._valid_until = time.monotonic() + RETRY_SECONDS

    def problem(self) -> DiskFull | None:
        """Return why no new work may begin; None if there is space."""
        if time.monotonic() >= self._valid_until:
            self._problem = None
            self._valid_until = time.monotonic() + _LOOK_SECONDS
            try:
                require_space(self._folder)
            except DiskFull as error:
                self._problem = error
        return self._problem

    def check(self) -> None:
        """Raise `DiskFull` if no new work may begin."""
        problem = self.problem()
        if problem is not None:
            raise DiskFull(str(problem))
