"""Digests of large files, such as base weights: computed once for each file, and kept in the store.

A file is known by its path, size, time of the last change and inode. What is not known is hashed before any
transaction, several files at once, and by one process at a time: processes that start together and need the same
digests wait for the one that hashes, and show its progress.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import bindparam, select
from sqlalchemy.dialects.sqlite import insert

from openclaw_rl.common.policy_digest import digest_of_file
from openclaw_rl.common.progress import record_progress
from openclaw_rl.errors import ModelError, StartStopped, StoreError
from openclaw_rl.store import heartbeats
from openclaw_rl.store import schema as t
from openclaw_rl.store.db import Store

log = logging.getLogger("openclaw_rl.store")
LOCK_FILE = "hashing.lock"
"""File beside the store. The process that hashes holds its lock, and writes its progress into it."""
STALLED_SECONDS = 60.0
"""Seconds without progress after which a process no longer waits for the one that hashes, which may be suspended."""
NOTABLE_BYTES = 2**28
"""Less is hashed in about a second, so that no progress is logged."""
# More would only compete for the disk.
_MAX_THREADS = 4
_REPORT_SECONDS = 1.0
_LOG_SECONDS = 5.0
_POLL_SECONDS = 0.2
# Of a file that changes while it is read.
_MAX_READS = 3
_GIB = 2**30

_find_digests = select(t.file_digests).where(
    t.file_digests.c.path.in_(bindparam("paths", expanding=True))
)
_put_digest = insert(t.file_digests)
_upsert_digest = _put_digest.on_conflict_do_update(
    index_elements=["path"],
    set_={c.name: _put_digest.excluded[c.name] for c in t.file_digests.c if c.name != "path"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestProgress:
    """How far the hashing is. `pid`: the process that hashes; `done`, `total`: bytes."""

    pid: int
    done: int
    total: int

    def describe(self) -> str:
        text = f"hashing weights: {self.done / _GIB:.1f} of {self.total / _GIB:.1f} GiB"
        return text if self.pid == os.getpid() else f"{text}, by process {self.pid}"


ReportProgress = Callable[[DigestProgress], None]
"""Called about once a second while files are hashed, by this process or another, if the hashing has advanced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """Identifies the content of a file without reading it."""

    path: str  # without symbolic links
    size: int  # bytes
    modified_ns: int
    inode: int

    @staticmethod
    def of_file(path: Path) -> FileState:
        """Raises `OSError`."""
        real = path.resolve(strict=True)
        stat = real.stat()
        return FileState(
            path=os.fsencode(real).decode("utf-8", "backslashreplace"),
            size=stat.st_size,
            modified_ns=stat.st_mtime_ns,
            # SQLite has signed numbers.
            inode=stat.st_ino & (2**63 - 1),
        )


def digest_files(
    store: Store,
    paths: Collection[Path],
    *,
    report: ReportProgress = lambda progress: None,
    should_stop: Callable[[], bool] = bool,
) -> dict[Path, bytes]:
    """Return the sha256 [32 bytes] of each file. Files whose digests the store does not have are hashed.

    It may take minutes: call it in a thread, and outside of a transaction. `should_stop` is polled meanwhile.
    Raises `ModelError` for a file that cannot be read or that changes all the time, `StartStopped` if `should_stop`
    returns true, and `StoreError`.
    """
    digests = _known_digests(store, paths)
    if len(digests) == len(paths):
        return digests
    with _hashing_turn(store.path.with_name(LOCK_FILE), report, should_stop) as publish:
        # Another process may have hashed them.
        digests = _known_digests(store, paths)
        missing = [path for path in paths if path not in digests]
        if missing:
            digests |= _hash_files(store, missing, publish, should_stop)
    return digests


class FolderDigests:
    """The digests of the large files in a folder, as far as the store knows them. Small files are read each time."""

    def __init__(self, store: Store, folder: Path, names: Collection[str]) -> None:
        """`names`: of files in the folder. The states of the files are those of now."""
        self._store = store
        self._states: dict[str, FileState] = {}
        for name in names:
            # A missing file is found by whoever reads the folder.
            with contextlib.suppress(OSError):
                state = FileState.of_file(folder / name)
                if state.size >= NOTABLE_BYTES:
                    self._states[name] = state

    def read_known(self) -> dict[str, str]:
        """Return the sha256 (hex) of the large files that have not changed since they were hashed, by name."""
        known = _stored_digests(self._store, self._states.values())
        return {name: known[state].hex() for name, state in self._states.items() if state in known}

    def record(self, digests: Mapping[str, str | None]) -> None:
        """Store the digests (hex) of the large files among these, in the states that they had at the beginning."""
        rows = []
        for name, state in self._states.items():
            digest = digests.get(name)
            if digest is not None:
                rows.append(asdict(state) | {"sha256": bytes.fromhex(digest)})
        if rows:
            with self._store.write() as conn:
                conn.execute(_upsert_digest, rows)


def heartbeat_reporter(store: Store, name: str) -> ReportProgress:
    """Return a function that shows the progress in the heartbeat of a worker that starts."""

    def write(progress: DigestProgress) -> None:
        # The disk may be full or busy for a moment, and the hashing continues.
        with contextlib.suppress(StoreError):
            heartbeats.write_heartbeat(store, name, progress.describe(), heartbeats.STARTING)

    return write


def copy_digests(source: Store, target: Store) -> None:
    """Copy all digests into the store of another home, which then hashes none of these files."""
    with source.read() as conn:
        rows = [dict(row) for row in conn.execute(select(t.file_digests)).mappings()]
    if rows:
        with target.write() as conn:
            conn.execute(_upsert_digest, rows)


def _known_digests(store: Store, paths: Collection[Path]) -> dict[Path, bytes]:
    """Return the digests of the files that the store has, and that have not changed since."""
    states = {path: _read_state(path) for path in paths}
    known = _stored_digests(store, states.values())
    return {path: known[state] for path, state in states.items() if state in known}


def _stored_digests(store: Store, states: Collection[FileState]) -> dict[FileState, bytes]:
    """Return the digests that the store has of these files, also in other states."""
    if not states:
        return {}
    with store.read() as conn:
        rows = conn.execute(_find_digests, {"paths": [state.path for state in states]}).all()
    return {
        FileState(
            path=row.path, size=row.size, modified_ns=row.modified_ns, inode=row.inode
        ): row.sha256
        for row in rows
    }


def _read_state(path: Path) -> FileState:
    try:
        return FileState.of_file(path)
    except OSError as error:
        raise _unreadable_error(path, error) from error


def _unreadable_error(path: Path, error: OSError) -> ModelError:
    return ModelError(
        f"{path}: cannot be read ({error.strerror or error}). Is the model folder complete?"
    )


def _hash_files(
    store: Store, paths: Collection[Path], publish: ReportProgress, should_stop: Callable[[], bool]
) -> dict[Path, bytes]:
    """Hash files in threads, and store each digest as soon as it is known."""
    counter = _HashingCounter(sum(_read_state(path).size for path in paths), publish)
    digests: dict[Path, bytes] = {}
    counter.begin(len(paths))
    with ThreadPoolExecutor(min(len(paths), _MAX_THREADS), thread_name_prefix="hash") as pool:
        tasks = {pool.submit(_hash_file, path, counter): path for path in paths}
        waiting: set[Future[tuple[FileState, bytes]]] = set(tasks)
        try:
            while waiting:
                ended, waiting = wait(waiting, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                for task in ended:
                    state, digests[tasks[task]] = task.result()
                    _store_digest(store, state, digests[tasks[task]])
                counter.report_if_due()
                if waiting and should_stop():
                    raise StartStopped("the start was stopped while the weights were hashed")
        finally:
            # After an error or an interrupt, the other threads end at their next block.
            counter.is_cancelled = True
            pool.shutdown(cancel_futures=True)
    counter.end(len(paths))
    return digests


def _store_digest(store: Store, state: FileState, digest: bytes) -> None:
    with store.write() as conn:
        conn.execute(_upsert_digest, asdict(state) | {"sha256": digest})


def _hash_file(path: Path, counter: _HashingCounter) -> tuple[FileState, bytes]:
    for _ in range(_MAX_READS):
        before = _read_state(path)
        try:
            digest = digest_of_file(path, counter.add)
        except OSError as error:
            raise _unreadable_error(path, error) from error
        if _read_state(path) == before:
            return before, digest
        counter.add(-before.size)
    raise ModelError(
        f"{path}: it changes while it is read. Start again when the copy or the download is complete"
    )


class _HashingCounter:
    """Counts the bytes that the threads have hashed, and reports them."""

    def __init__(self, total: int, publish: ReportProgress) -> None:
        self._total = total
        self._publish = publish
        self._done = 0
        self._reported = 0
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._reported_at = self._logged_at = self._began
        self.is_cancelled = False

    def add(self, size: int) -> None:
        """Count bytes. Raises `StartStopped` in a thread whose result nobody needs any more."""
        if self.is_cancelled:
            raise StartStopped("the hashing was cancelled")
        with self._lock:
            self._done += size

    def begin(self, count: int) -> None:
        self._publish(self._progress)
        if self._total >= NOTABLE_BYTES:
            log.info(
                "hashing %s of weights, once: %.1f GiB", _number_of_files(count), self._total / _GIB
            )

    def report_if_due(self) -> None:
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_SECONDS and self._done != self._reported:
            self._reported_at = now
            self._reported = self._done
            self._publish(self._progress)
        if now - self._logged_at >= _LOG_SECONDS:
            self._logged_at = now
            log.info("%s", self._progress.describe())

    def end(self, count: int) -> None:
        self._publish(self._progress)
        if self._total >= NOTABLE_BYTES:
            log.info(
                "hashed %s of weights in %.0f s",
                _number_of_files(count),
                time.monotonic() - self._began,
            )

    @property
    def _progress(self) -> DigestProgress:
        return DigestProgress(pid=os.getpid(), done=self._done, total=self._total)


def _number_of_files(count: int) -> str:
    return f"{count} {'file' if count == 1 else 'files'}"


@contextmanager
def _hashing_turn(
    lock_file: Path, report: ReportProgress, should_stop: Callable[[], bool]
) -> Iterator[ReportProgress]:
    """Wait until no other process hashes for this store. Yields the function that publishes the progress.

    The lock ends with the process that holds it. One that holds it without progress is no longer waited for: two
    processes that hash the same files cost time, and a process that waits for a suspended one never starts.
    """
    seen: DigestProgress | None = None
    seen_at = time.monotonic()
    with lock_file.open("a+b", buffering=0) as file:
        while not _try_lock(file.fileno()):
            progress = _read_progress(file.fileno())
            now = time.monotonic()
            if progress is not None and progress != seen:
                if seen is None:
                    log.info(
                        "process %d hashes the weights; this one waits for the result", progress.pid
                    )
                seen = progress
                seen_at = now
                record_progress()
                report(progress)
            if now - seen_at > STALLED_SECONDS:
                log.warning(
                    "the process that hashes the weights does not advance: this one hashes them, too"
                )
                break
            if should_stop():
                raise StartStopped("the start was stopped while another process hashed the weights")
            time.sleep(_POLL_SECONDS)

        def publish(progress: DigestProgress) -> None:
            raw = json.dumps(asdict(progress)).encode()
            # Such as a full disk, on which nothing depends here.
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), 0)
                # At the end of the file, as it was opened for appending.
                os.write(file.fileno(), raw)
            report(progress)

        yield publish


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_progress(descriptor: int) -> DigestProgress | None:
    """Return the progress of the process that hashes; None before it has written any, or while it writes."""
    try:
        fields: Mapping[str, int] = json.loads(os.pread(descriptor, 4096, 0))
        return DigestProgress(
            pid=int(fields["pid"]), done=int(fields["done"]), total=int(fields["total"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
