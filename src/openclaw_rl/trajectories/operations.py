"""The commands of `openclaw-rl data`: check, import, score, export."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from sqlalchemy import Connection

from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.load import Config
from openclaw_rl.store.db import Store
from openclaw_rl.store.rows import to_json
from openclaw_rl.trajectories import atomic_write, exporter, flat_rows, parquet
from openclaw_rl.trajectories import files as reading
from openclaw_rl.trajectories.exporter import Session, Stored
from openclaw_rl.trajectories.files import Entry
from openclaw_rl.trajectories.importer import Follow, Importer, score_waiting
from openclaw_rl.trajectories.redact import Redactor
from openclaw_rl.trajectories.report import Report, number_of
from openclaw_rl.trajectories.resolve import plan
from openclaw_rl.trajectories.schema import Refused

REFUSALS = "refused.jsonl"
_NO_FORMAT = (".csv", ".tsv", ".txt", ".gz", ".zip", ".zst", ".yaml", ".yml", ".arrow")
"""Unsupported file suffixes. A target that ends with one is refused, not taken as a folder's name."""
_SINCE = re.compile(r"(\d+)([hdw])")
_UNITS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
Tick = Callable[[int, int], None]
"""(bytes, trajectories) processed since the last call."""


def check(paths: Sequence[str], *, report: str | None) -> bool:
    """Validate files without importing. Return False if any was refused. Raises `OpenClawError` for no files."""
    found = reading.files([Path(p) for p in paths])
    with Report(Path(report) if report else None) as told, _bytes("checking", found) as tick:
        for entry in _ticked(found, tick):
            told.counts.read += 1
            try:
                told.counts.count(turns=(n := len(plan(entry.trajectory()))), of=n, news=False)
            except Refused as problem:
                told.refuse(entry, problem)
    Console().print(told.shown("valid"))
    return told.refused == 0


def bring_in(config: Config, paths: Sequence[str], *, score: bool, report: str | None) -> bool:
    """Import files. Return False if some trajectories were refused. Raises `OpenClawError`."""
    found = reading.files([Path(p).expanduser() for p in paths])
    store = Store.open(config.store_path)
    try:
        importer = Importer(config, store, score=score)
        file = Path(report) if report else config.logs_dir / REFUSALS
        with Report(file) as told, _bytes("importing", found) as tick:
            importer.run(_entries(found), told, follow=_follower(tick))
    finally:
        store.close()
    Console().print(told.shown("imported"))
    return told.refused == 0


def score(config: Config) -> None:
    """Compute the log-probabilities that an import left out. Raises `OpenClawError`."""
    store = Store.open(config.store_path, create=False)
    try:
        columns = (TextColumn("scoring"), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task("scoring", total=None)
            done = score_waiting(config, store, lambda n: bar.advance(task, n))
    finally:
        store.close()
    Console().print(f"{done} turns scored")


def send_out(
    config: Config, target: str, *, names: Sequence[str], since: str | None, form: str, redact: bool = False
) -> None:
    """Export a file for each session into a folder, or everything into one .jsonl, .json or .parquet.

    `redact`: replace personal data and secrets. Raises `OpenClawError`.
    """
    path = Path(target).expanduser()
    if form == "turns" and path.suffix.lower() not in (*reading.LINES, parquet.SUFFIX):
        raise OpenClawError(f"{path}: rows of turns go into one .jsonl or .parquet. Name such a file.")
    if not target or (path.suffix.lower() in _NO_FORMAT and not path.is_dir()):
        raise OpenClawError(f"{target!r}: expected a folder, or a file that ends with .jsonl, .json or .parquet.")
    store = Store.open(config.store_path, create=False)
    try:
        after = None if since is None else moment(since, time.time())
        redactor = Redactor(store.secret) if redact else None
        with store.read() as conn, store.read() as other:
            for name in names:
                if not exporter.count(other, names=(name,)):
                    raise OpenClawError(f"--session {name}: no such session. `openclaw-rl inspect sessions` lists all.")
            found = exporter.sessions(conn, names=names, since=after)
            with _counted("exporting", exporter.count(other, names=names, since=after)) as tick:
                told = _send(other, path, _each(found, tick), form, redactor)
    finally:
        store.close()
    Console(soft_wrap=True, highlight=False).print(told if redactor is None else told + redactor.told, markup=False)


def _send(conn: Connection, path: Path, sessions: Iterable[Session], form: str, redactor: Redactor | None) -> str:
    if form == "turns":
        return _rows(conn, path, sessions, redactor)
    number, large = 0, list[str]()
    one_file = path.suffix.lower() in reading.SUFFIXES
    with _into(path, form) if one_file else nullcontext() as add:
        for session, items in _all(conn, sessions):
            raw = _told(session, items, redactor)
            number += 1
            if len(raw) > reading.ENTRY_BYTES:
                large.append(session.name if redactor is None else redactor.name(session.name))
            if add is not None:
                add(raw)
            else:
                _put(conn, path, session, raw, False, redactor)
    if not one_file:
        os.sync()
    told = f"{number_of(number)} in {path}"
    if not large:
        return told
    most = f"{reading.ENTRY_BYTES // 2**20} MiB, more than an import accepts"
    return f"{told}. Above {most}: {', '.join(large[:5])}{' ...' if large[5:] else ''}"


def _all(conn: Connection, sessions: Iterable[Session]) -> Iterator[tuple[Session, list[Stored]]]:
    """Return the sessions that have a turn, with their turns."""
    return ((session, items) for session, items in exporter.stored_of(conn, sessions) if items)


def _rows(conn: Connection, path: Path, sessions: Iterable[Session], redactor: Redactor | None) -> str:
    written = left = 0
    with _into(path, "turns") as add:
        for session, items in exporter.stored_of(conn, sessions):
            if redactor is not None:
                redactor.begin()
            for item in items:
                row = flat_rows.row_of(session, item)
                if row is not None and redactor is not None:
                    row = redactor.row(row, redactor.turn(exporter.turn_of(item)))
                written, left = written + (row is not None), left + (row is None)
                if row is not None:
                    add(to_json(row))
    without = f"; {left} turns without text, tokens or log-probabilities were left out" if left else ""
    return f"{written} turns in {path}{without}"


@contextmanager
def _into(path: Path, form: str) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that appends a JSON value. The file appears if the block ends without error."""
    suffix = path.suffix.lower()
    if suffix == parquet.SUFFIX:
        parquet.library()
        with atomic_write.replacing(path) as stream, parquet.writing(stream, form) as add:
            yield add
        return
    begin, between, end = (b"", b"\n", b"\n") if suffix in reading.LINES else (b"[", b",\n", b"]\n")
    with atomic_write.replacing(path) as stream:
        before = begin

        def add_raw(raw: bytes) -> None:
            nonlocal before
            stream.write(before + raw)
            before = between

        yield add_raw
        if before is between:
            stream.write(end)
        elif begin:
            stream.write(begin + end)


def exported(conn: Connection, session: Session, **which: Any) -> bytes | None:
    """Return a session as one line of JSON; None without turns. `which`: see `exporter.stored_turns`."""
    items = list(exporter.stored(conn, session, **which))
    return _told(session, items, None) if items else None


def _told(session: Session, items: Sequence[Stored], redactor: Redactor | None) -> bytes:
    if redactor is None:
        return to_json(exporter.trajectory(session, items))
    redactor.begin()
    turns = [redactor.turn(exporter.turn_of(item)) for item in items]
    return to_json({"session_id": redactor.name(session.name), "turns": turns})


def save(conn: Connection, folder: Path, session: Session, **which: Any) -> Path | None:
    """Write a session's file if its content is new, and return its path; None if there are no turns.

    `which`: see `exporter.stored_turns`.
    """
    raw = exported(conn, session, **which)
    return None if raw is None else _put(conn, folder, session, raw, True, None)


def _put(conn: Connection, folder: Path, session: Session, raw: bytes, sync: bool, redactor: Redactor | None) -> Path:
    """Write the file and return its path. `sync`: see `atomic_write.atomic_writer`."""
    stem = exporter.file_stem(conn, session)
    if redactor is not None and (name := redactor.name(session.name)) != session.name:
        stem = atomic_write.stem(name) + stem.removeprefix(atomic_write.stem(session.name))
    path = folder / f"{stem}.json"
    atomic_write.write(path, raw + b"\n", sync=sync)
    return path


def moment(text: str, now: float) -> float:
    """Parse 7d, 12h, 2w, 2026-03-01 or 2026-03-01T12:00 to seconds since the epoch. Raises `OpenClawError`."""
    if ago := _SINCE.fullmatch(text.strip()):
        return now - int(ago[1]) * _UNITS[ago[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        raise OpenClawError(f"--since {text}: expected 12h, 7d, 2w, or a date such as 2026-03-01") from None


# ------------------------------------------------------------------------------------------------------------ progress


def _entries(files: Iterable[Path]) -> Iterator[Entry]:
    for file in files:
        yield from reading.entries(file)


def _ticked(files: Iterable[Path], tick: Tick) -> Iterator[Entry]:
    follow = _follower(tick)
    for entry in _entries(files):
        yield entry
        follow(entry, 1)


def _follower(tick: Tick) -> Follow:
    """Return a callback that turns the progress of entries into bytes and finished trajectories."""
    far: dict[int, int] = {}  # id() of each unfinished entry -> bytes reported so far

    def follow(entry: Entry, share: float) -> None:
        before = far.pop(id(entry), 0)
        now = max(before, int(share * entry.size))
        if share < 1:
            far[id(entry)] = now
        tick(now - before, int(share == 1))

    return follow


class _Rate(ProgressColumn):
    """Trajectories per second, averaged over the whole run."""

    def render(self, task: Any) -> str:
        done, took = task.fields["done"], task.elapsed or 0.0
        return f"{number_of(done)}, {done / took:.0f}/s" if took > 0.5 else number_of(done)


@contextmanager
def _bytes(what: str, files: Sequence[Path]) -> Iterator[Tick]:
    total = sum(reading.size(file) for file in files)
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), _Rate(), TextColumn("left"), TimeRemainingColumn(True))
    with Progress(*columns, console=Console(stderr=True), speed_estimate_period=60.0) as bar:
        task = bar.add_task(what, total=total, done=0)

        def tick(size: int, number: int) -> None:
            bar.update(task, advance=size, done=bar.tasks[0].fields["done"] + number)

        yield tick


@contextmanager
def _counted(what: str, total: int) -> Iterator[Callable[[], None]]:
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn(True))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def _each(sessions: Iterable[Session], tick: Callable[[], None]) -> Iterator[Session]:
    for session in sessions:
        yield session
        tick()
