"""The queue of the writers of a store: whoever waits longest writes next, and waits in the kernel.

SQLite has no queue. Who polls its write lock finds it free by chance, and a writer that begins again at once takes it
from all others. Here each writer passes two locks on files beside the store, as through a door with one desk behind it:
it waits at the door, then at the desk with the door still closed, and opens the door when it has reached the desk. A
writer that begins again is behind the door while the next one waits at the desk. The kernel wakes one waiter at a time,
in the order of arrival, and frees the locks of a process that ends.

The write lock of SQLite remains what excludes others. The queue decides only who takes it next, so a writer that waits
for too long, such as behind a suspended process, polls the write lock out of turn.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger("openclaw_rl.store")
MAX_WAIT = 2.0
"""Seconds in the queue after which a writer polls the write lock out of turn."""
DOOR_SUFFIX = ".door.lock"
DESK_SUFFIX = ".desk.lock"
_UNSUPPORTED = frozenset(
    {errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}
)


class WriteQueue:
    """The queue of one store; thread-safe, and shared by all processes that have the store open."""

    def __init__(self, path: Path) -> None:
        """`path`: of the store."""
        self._path = path
        self._free: deque[_Place] = deque()
        self._pid = os.getpid()
        self._is_usable = True
        # The last wait that a writer has given up.
        self._given_up: _Wait | None = None

    @contextmanager
    def wait_turn(self) -> Iterator[None]:
        """Wait for the turn of this thread, at most `MAX_WAIT`, and leave the queue at the end of the block."""
        place = self._take_place()
        if place is None:
            yield
            return
        try:
            yield
        finally:
            place.leave()
            self._free.append(place)

    def close(self) -> None:
        """Close the files of the places that nobody uses."""
        while self._free:
            self._free.pop().close()

    def _take_place(self) -> _Place | None:
        """Return a place at the desk; None if the turn does not come, or if the file system has no locks."""
        if not self._is_usable or self._is_stuck():
            return None
        try:
            place = self._open_place()
            if place.try_now():
                return place
            wait = _Wait(place)
            if wait.has_ended(MAX_WAIT):
                return place
            self._given_up = wait
        except OSError as error:
            self._report_unusable(error)
        return None

    def _is_stuck(self) -> bool:
        """Return whether the wait that was given up last has not ended: nobody leaves the desk."""
        return self._given_up is not None and self._given_up.is_running

    def _open_place(self) -> _Place:
        if self._pid != os.getpid():
            # The files of a fork are those of its parent, and so are their locks.
            self.close()
            self._pid = os.getpid()
        try:
            return self._free.pop()
        except IndexError:
            return _Place(self._path)

    def _report_unusable(self, error: OSError) -> None:
        """Log that writers have no order. On a file system without locks, the queue is not tried again."""
        if error.errno in _UNSUPPORTED:
            self._is_usable = False
            log.info(
                "store %s: its file system has no locks on files (%s): writers poll the write lock, in no order",
                *(self._path, error),
            )
        else:
            log.warning(
                "store %s: the queue of its writers cannot be used (%s): this one polls the write lock",
                *(self._path, error),
            )


class _Place:
    """A place in the queue: an open file for each of the two locks. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._door = _open_lock(path, DOOR_SUFFIX)
        try:
            self._desk = _open_lock(path, DESK_SUFFIX)
        except OSError:
            os.close(self._door)
            raise

    def try_now(self) -> bool:
        """Return whether the desk was reached at once. If not, the door may be held.

        Raises `OSError` on a file system without locks, after which the place is used up.
        """
        try:
            if not (_try_lock(self._door) and _try_lock(self._desk)):
                return False
            fcntl.flock(self._door, fcntl.LOCK_UN)
        except OSError:
            self.close()
            raise
        return True

    def wait_in_kernel(self) -> None:
        """Wait without a limit, after `try_now`."""
        fcntl.flock(self._door, fcntl.LOCK_EX)
        fcntl.flock(self._desk, fcntl.LOCK_EX)
        fcntl.flock(self._door, fcntl.LOCK_UN)

    def leave(self) -> None:
        fcntl.flock(self._desk, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the files, and with them their locks."""
        os.close(self._door)
        os.close(self._desk)


class _Wait:
    """A wait in the kernel, which cannot be interrupted, in a thread of its own, so that it can be given up."""

    def __init__(self, place: _Place) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._has_ended = False
        self._is_given_up = False
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="write-queue", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def has_ended(self, limit: float) -> bool:
        """Return whether the desk is reached within `limit` seconds; if not, the place is used up.

        Raises `OSError` as `_Place.try_now` does.
        """
        self._thread.join(limit)
        with self._lock:
            self._is_given_up = not self._has_ended
        if self._error is not None:
            raise self._error
        return not self._is_given_up

    def _run(self) -> None:
        try:
            self._place.wait_in_kernel()
        except OSError as error:
            self._error = error
        with self._lock:
            self._has_ended = True
            is_needed = not self._is_given_up and self._error is None
        if not is_needed:
            self._place.close()


def _open_lock(path: Path, suffix: str) -> int:
    return os.open(path.with_name(path.name + suffix), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
