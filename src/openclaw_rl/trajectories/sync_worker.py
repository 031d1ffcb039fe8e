"""Worker that imports trajectories from folders and exports sessions to a folder."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

from openclaw_rl.common import disk_space
from openclaw_rl.common.atomic_files import ensure_folder
from openclaw_rl.common.progress import record_progress
from openclaw_rl.common.worker_loop import run_worker_loop
from openclaw_rl.errors import ConfigError, OpenClawError, StartStopped, StoreError
from openclaw_rl.settings.load import Config
from openclaw_rl.store import events, heartbeats, sessions
from openclaw_rl.store.db import Store
from openclaw_rl.store.file_digests import DigestProgress
from openclaw_rl.store.workers.attempts import AttemptLog
from openclaw_rl.trajectories import files as reading
from openclaw_rl.trajectories import parquet
from openclaw_rl.trajectories.atomic_write import remove_unfinished
from openclaw_rl.trajectories.importer import TrajectoryImporter
from openclaw_rl.trajectories.operations import REFUSALS_FILE, save_session
from openclaw_rl.trajectories.report import ImportReport, trajectories_text
from openclaw_rl.trajectories.schema import TrajectoryRefused

_T = TypeVar("_T")
log = logging.getLogger("openclaw_rl.data")
SETTLED_EVENTS = ("turn.closed", "turn.judged", "turn.dropped")
EVENTS_PER_BATCH = 256
QUIET_SECONDS = 1.0
"""Seconds since the last change of a file before it is imported, because it may still be written in place."""


async def run(config: Config, *, stop: asyncio.Event) -> None:
    """Run the data worker until `stop` is set.

    Consumes: events of turn states, through a durable cursor; files of `data.path` and `data.watch_dir`.
    Produces: a file for each session in `data.export_dir`; imported exchanges and their turns.
    Waits for: turns that close, and files that are new or have changed.
    Unblocked by: any commit; it reads the folders every `data.poll` seconds.

    Raises `OpenClawError` when a folder cannot be written or the model cannot be loaded.
    """
    with await asyncio.to_thread(Store.open, config.store_path) as store:
        heartbeats.write_heartbeat(store, "data", "starting", heartbeats.STARTING)
        sync = FolderSync(config, store, stop=stop.is_set)
        await run_worker_loop(
            sync.run_once,
            heartbeats.heartbeat_writer(store, "data", lambda: sync.note),
            stop,
            poll=config.data.poll,
            on_stop=sync.forget_attempts,
        )


class FolderSync:
    """Syncs folders with the store. `run_once` blocks and is not thread-safe; it polls `stop` during long work."""

    def __init__(
        self,
        config: Config,
        store: Store,
        *,
        stop: Callable[[], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        data = config.data
        self._config = config
        self._store = store
        self._should_stop = stop
        self._clock = clock
        self._export_dir = Path(data.export_dir).expanduser() if data.export_dir else None
        if self._export_dir:
            remove_unfinished(self._export_dir)
        self._import_path = Path(data.path).expanduser() if data.path else None
        self._watch_dir = Path(data.watch_dir).expanduser() if data.watch_dir else None
        self._written = self._imported = self._refused = self._left_out = 0
        self._attempts = AttemptLog(store, "data")
        self.note = "waiting"

    def forget_attempts(self) -> None:
        """Forget what is being worked on: the end of this process, which is due, is not the fault of a file."""
        with contextlib.suppress(StoreError):
            self._attempts.forget()

    def run_once(self) -> bool:
        """Run one iteration. Return True if more events are waiting. Raises `DiskFull` if a disk has no space."""
        for folder in filter(None, (self._store.path.parent, self._export_dir)):
            disk_space.require_space(folder)
        busy = self._export_settled() if self._export_dir else False
        if self._import_path is not None:
            # Raises at once if the path does not exist.
            self._import_changed(reading.find_files([self._import_path]))
            # Only now: an import that a full disk interrupts is repeated.
            self._import_path = None
        if self._watch_dir is not None:
            self._import_changed(self._quiet_files(self._watch_dir))
        self.note = (
            f"{self._written} files written, {trajectories_text(self._imported)} imported, {self._refused} refused"
            + (f", sessions not exported: {self._left_out}" if self._left_out else "")
        )
        return busy

    # Export: a file for each session.

    def _export_settled(self) -> bool:
        """Write the files before the cursor: after a crash they are written again with the same content."""
        assert self._export_dir is not None
        name = f"data.buffer:{_digest_number(str(self._export_dir.resolve())):x}"
        with self._store.read() as conn:
            batch = events.read_after(
                conn, events.read_cursor(conn, name), EVENTS_PER_BATCH, SETTLED_EVENTS
            )
            waiting = sessions.sessions_of_turns(conn, {event.ref for event in batch})
        if not batch:
            return False
        with self._attempts.interrupted_by(OpenClawError, OSError):
            for session in self._harmless(
                name, waiting, lambda s: f"{s.scope} {s.name}", self._leave_out_session
            ):
                with self._store.read() as conn:
                    written = save_session(
                        conn, self._export_dir, session, settled=True, served_here=True
                    )
                self._written += written is not None
                log.debug("session %s: written to %s", session.name, written)
            with self._store.write() as conn:
                events.move_cursor(conn, name, batch[-1].seq)
                self._attempts.end(conn)
        return len(batch) == EVENTS_PER_BATCH

    def _leave_out_session(self, session: sessions.StoredSession, reason: str) -> None:
        self._left_out += 1
        log.error("session %s is not exported: %s", session.name, reason)

    def _harmless(
        self,
        whole: str,
        items: Iterable[_T],
        ref: Callable[[_T], str],
        leave_out: Callable[[_T, str], None],
    ) -> Iterator[_T]:
        """Yield the items of a whole, each noted while the caller works on it if a worker died on the whole before.

        An item on which workers died twice is left out, with the reason.
        """
        if not self._attempts.begin([whole]):
            for item in items:
                record_progress()
                yield item
            return
        for item in items:
            record_progress()
            ref_of_item = f"{whole} {ref(item)}"
            deaths = self._attempts.begin([ref_of_item]).get(ref_of_item, 0)
            with self._store.write(durable=False) as conn:
                reason = self._attempts.give_up(conn, ref_of_item, deaths)
            if reason is not None:
                leave_out(item, reason.detail)
                continue
            yield item
            self._attempts.forget([ref_of_item])

    # Import: files that are new or have changed.

    def _quiet_files(self, folder: Path) -> list[Path]:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        now = self._clock()
        # A modification time in the future (another machine's clock) must not delay the import.
        return [
            p
            for p in reading.files_inside(folder)
            if not now - QUIET_SECONDS < _modified_at(p) <= now + QUIET_SECONDS
        ]

    def _import_changed(self, files: Iterable[Path]) -> None:
        changes = [(file, _file_change(self._store, file)) for file in files]
        fresh = [(file, change) for file, change in changes if change is not None]
        if not fresh or self._should_stop():
            return
        try:
            importer = TrajectoryImporter(
                self._config,
                self._store,
                report=self._report_hashing,
                should_stop=self._should_stop,
            )
        except StartStopped:
            return
        with ImportReport(self._config.logs_dir / REFUSALS_FILE) as report:
            for file, (name, seen) in fresh:
                self.note = (
                    f"importing {file.name}: {trajectories_text(report.counts.imported)} so far"
                )
                log.debug("reading %s", file)
                with self._attempts.interrupted_by(OpenClawError, OSError):
                    self._import_file(importer, file, name, report)
                if self._should_stop():
                    return
                with self._store.write() as conn:
                    events.move_cursor(conn, name, seen)
                    self._attempts.end(conn)
        self._imported += report.counts.imported + report.counts.grown
        self._refused += report.refused_count
        self._log_report(report)

    def _report_hashing(self, progress: DigestProgress) -> None:
        self.note = progress.describe()

    def _import_file(
        self, importer: TrajectoryImporter, file: Path, name: str, report: ImportReport
    ) -> None:
        """Import all entries of a file; one at a time if a worker died on the file before."""

        def refuse(entry: reading.TrajectoryEntry, reason: str) -> None:
            report.add_refusal(entry, TrajectoryRefused("fatal", reason))

        deaths = self._attempts.deaths()
        # No entry is to blame.
        if name in deaths and not any(ref.startswith(f"{name} ") for ref in deaths):
            with self._store.write(durable=False) as conn:
                reason = self._attempts.give_up(conn, name, deaths[name])
            if reason is not None:
                refuse(reading.TrajectoryEntry(file=file, place="", size=0), reason.detail)
                return
        entries = self._harmless(
            name, reading.read_entries(file), lambda entry: entry.place, refuse
        )
        for part in ([entry] for entry in entries) if name in deaths else [entries]:
            importer.run(
                part,
                report,
                follow=lambda _entry, _share: record_progress(),
                stop=self._should_stop,
            )
            if self._should_stop():
                return

    def _log_report(self, report: ImportReport) -> None:
        c = report.counts
        log.info(
            "imported %d trajectories (%d turns), %d updated, %d known",
            c.imported,
            c.turns,
            c.grown,
            c.known,
        )
        if report.refused_count:
            kinds = ", ".join(f"{n} {reason}" for reason, n in c.refused.most_common())
            log.warning(
                "%d trajectories were refused (%s); all refusals: %s",
                report.refused_count,
                kinds,
                report.file,
            )


def is_import_done(config: Config, store: Store) -> bool:
    """Return True if all files of `data.path` were imported or refused."""
    path = config.data.path
    return path is None or all(
        _file_change(store, file) is None for file in reading.find_files([Path(path).expanduser()])
    )


def _modified_at(file: Path) -> float:
    """Return the modification time in seconds since the epoch; 0 for a file that was removed in the meantime."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _file_change(store: Store, file: Path) -> tuple[str, int] | None:
    """Return (cursor name, file state) if the file exists and has changed since its import, else None."""
    try:
        stat = file.stat()
    except FileNotFoundError:
        # Removed since the folder was read.
        return None
    name = f"data.file:{_digest_number(str(file.resolve())):x}"
    state = _digest_number(f"{stat.st_size} {stat.st_mtime_ns}")
    with store.read() as conn:
        return None if events.read_cursor(conn, name) == state else (name, state)


def _digest_number(text: str) -> int:
    """Return a 63-bit digest of a text."""
    return (
        int.from_bytes(
            blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big"
        )
        >> 1
    )


def _check_files(path: Path) -> None:
    """Raise `ConfigError` if there is nothing to import at the path, or a library for it is not installed."""
    try:
        if any(file.suffix.lower() == parquet.SUFFIX for file in reading.find_files([path])):
            parquet.import_pyarrow()
    except OpenClawError as error:
        raise ConfigError(f"data.path: {error}") from None


def check_folders(config: Config) -> None:
    """Raise `ConfigError` if the path to import has no trajectories, or a folder cannot be used."""
    data = config.data
    if data.path and not os.path.exists(Path(data.path).expanduser()):  # noqa: PTH110 - False without permission
        raise ConfigError(
            f"data.path {data.path}: no such file or folder. Expected trajectories to import."
        )
    if data.path:
        _check_files(Path(data.path).expanduser())
    if data.export_dir:
        ensure_folder("data.export_dir", data.export_dir)
    if data.watch_dir:
        ensure_folder("data.watch_dir", data.watch_dir, written=False)
