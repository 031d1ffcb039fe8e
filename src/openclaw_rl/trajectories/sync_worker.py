"""Worker that imports trajectories from folders and exports sessions to a folder."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from hashlib import blake2b
from pathlib import Path

from sqlalchemy import select

from openclaw_rl.common.atomic_files import usable
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.load import Config
from openclaw_rl.store import events, heartbeats
from openclaw_rl.store import schema as t
from openclaw_rl.store.db import Store
from openclaw_rl.trajectories import files as reading
from openclaw_rl.trajectories.exporter import Session
from openclaw_rl.trajectories.importer import Importer
from openclaw_rl.trajectories.operations import REFUSALS, save
from openclaw_rl.trajectories.report import Report, number_of

log = logging.getLogger("openclaw_rl.data")
BEAT = 1.0  # seconds
SETTLED = ("turn.closed", "turn.judged", "turn.dropped")
BATCH = 256
QUIET = 1.0
"""Seconds since the last change of a file before it is imported, because it may still be written in place."""


async def run(config: Config, *, stop: asyncio.Event) -> None:
    """Run the data worker until `stop` is set.

    Consumes: events of turn states, through a durable cursor; files of `data.path` and `data.rollout_dir`.
    Produces: a file for each session in `data.buffer_dir`; imported exchanges and their turns.
    Waits for: turns that close, and files that are new or have changed.
    Unblocked by: any commit; it reads the folders every `data.poll` seconds.

    Raises `OpenClawError` when a folder cannot be written or the model cannot be loaded.
    """
    store = await asyncio.to_thread(Store.open, config.store_path)
    try:
        heartbeats.beat(store, "data", "starting", heartbeats.STARTING)
        bridge = Bridge(config, store, stop=stop.is_set)
        while not stop.is_set():
            work = asyncio.create_task(asyncio.to_thread(bridge.turn))
            while not (await asyncio.wait({work}, timeout=BEAT))[0]:
                await asyncio.to_thread(heartbeats.beat, store, "data", bridge.note)
            busy = work.result()
            await asyncio.to_thread(heartbeats.beat, store, "data", bridge.note)
            if not busy:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), config.data.poll)
    finally:
        store.close()


class Bridge:
    """Syncs folders with the store. `run_once` blocks and is not thread-safe; it polls `stop` during long work."""

    def __init__(
        self, config: Config, store: Store, *, stop: Callable[[], bool], clock: Callable[[], float] = time.time
    ) -> None:
        data = config.data
        self._config, self._store, self._stop, self._clock = config, store, stop, clock
        self._buffer = Path(data.buffer_dir).expanduser() if data.buffer_dir else None
        self._path = Path(data.path).expanduser() if data.path else None
        self._watched = Path(data.rollout_dir).expanduser() if data.rollout_dir else None
        self._written = self._imported = self._refused = 0
        self.note = "waiting"

    def turn(self) -> bool:
        """Run one iteration. Return True if more events are waiting."""
        busy = self._out() if self._buffer else False
        if self._path is not None:
            self._in(reading.files([self._path]))  # raises at once if the path does not exist
            self._path = None
        if self._watched is not None:
            self._in(self._quiet(self._watched))
        self.note = f"{self._written} files written, {number_of(self._imported)} imported, {self._refused} refused"
        return busy

    # Export: a file for each session.

    def _out(self) -> bool:
        """Write the files before the cursor: after a crash they are written again with the same content."""
        assert self._buffer is not None
        name = f"data.buffer:{_digest(str(self._buffer.resolve())):x}"
        with self._store.read() as conn:
            found = events.after(conn, events.cursor(conn, name), BATCH, SETTLED)
            sessions = self._sessions({event.ref for event in found})
            for session in sessions:
                written = save(conn, self._buffer, session, settled=True, served_here=True)
                self._written += written is not None
        if found:
            with self._store.write() as conn:
                events.move_cursor(conn, name, found[-1].seq)
        return len(found) == BATCH

    def _sessions(self, turns: Iterable[str]) -> list[Session]:
        with self._store.read() as conn:
            rows = conn.execute(
                select(t.turns.c.scope, t.turns.c.session).distinct().where(t.turns.c.id.in_(list(turns)))
            )
            return sorted((Session(scope=r.scope, name=r.session) for r in rows), key=lambda s: (s.scope, s.name))

    # Import: files that are new or have changed.

    def _quiet(self, folder: Path) -> list[Path]:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        now = self._clock()
        # A modification time in the future (another machine's clock) must not delay the import.
        return [p for p in reading.inside(folder) if not now - QUIET < _changed(p) <= now + QUIET]

    def _in(self, files: Iterable[Path]) -> None:
        fresh = [(file, mark) for file in files if (mark := self._news(file)) is not None]
        if not fresh or self._stop():
            return
        importer = Importer(self._config, self._store)
        with Report(self._config.logs_dir / REFUSALS) as report:
            for file, (name, seen) in fresh:
                self.note = f"importing {file.name}: {number_of(report.counts.imported)} so far"
                importer.run(reading.entries(file), report, stop=self._stop)
                if self._stop():
                    return
                with self._store.write() as conn:
                    events.move_cursor(conn, name, seen)
        self._imported += report.counts.imported + report.counts.grown
        self._refused += report.refused
        self._tell(report)

    def _news(self, file: Path) -> tuple[str, int] | None:
        """Return (cursor name, file state) if the file has changed since its import, else None."""
        return _news(self._store, file)

    def _tell(self, report: Report) -> None:
        c = report.counts
        log.info("imported %d trajectories (%d turns), %d updated, %d known", c.imported, c.turns, c.grown, c.known)
        if report.refused:
            kinds = ", ".join(f"{n} {reason}" for reason, n in c.refused.most_common())
            log.warning("%d trajectories were refused (%s); all refusals: %s", report.refused, kinds, report.file)


def imported(config: Config, store: Store) -> bool:
    """Return True if all files of `data.path` were imported or refused."""
    path = config.data.path
    return path is None or all(_news(store, file) is None for file in reading.files([Path(path).expanduser()]))


def _changed(file: Path) -> float:
    """Return the modification time in seconds since the epoch; 0 for a file that was removed in the meantime."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _news(store: Store, file: Path) -> tuple[str, int] | None:
    """Return (cursor name, file state) if the file exists and has changed since its import, else None."""
    try:
        stat = file.stat()
    except FileNotFoundError:  # removed since the folder was read
        return None
    name = f"data.file:{_digest(str(file.resolve())):x}"
    state = _digest(f"{stat.st_size} {stat.st_mtime_ns}")
    with store.read() as conn:
        return None if events.cursor(conn, name) == state else (name, state)


def _digest(text: str) -> int:
    """Return a 63-bit digest of a text."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big") >> 1


def check(config: Config) -> None:
    """Raise `ConfigError` if the path to import does not exist, or a folder cannot be used."""
    data = config.data
    if data.path and not os.path.exists(Path(data.path).expanduser()):  # noqa: PTH110 - False without permission
        raise ConfigError(f"data.path {data.path}: no such file or folder. Expected trajectories to import.")
    if data.buffer_dir:
        usable("data.buffer_dir", data.buffer_dir)
    if data.rollout_dir:
        usable("data.rollout_dir", data.rollout_dir, written=False)
