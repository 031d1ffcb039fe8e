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

from openclaw_rl.common.terminal import TerminalConsole
from openclaw_rl.errors import OpenClawError
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import Config
from openclaw_rl.store.db import Store
from openclaw_rl.store.file_digests import (
    NOTABLE_BYTES,
    DigestProgress,
    ReportProgress,
    digest_files,
)
from openclaw_rl.store.rows import to_json
from openclaw_rl.store.sessions import (
    StoredSession,
    StoredTurn,
    count_sessions,
    first_scope,
    iter_sessions,
    stored_turns,
    turns_by_session,
)
from openclaw_rl.trajectories import atomic_write, exporter, flat_rows, parquet
from openclaw_rl.trajectories import files as reading
from openclaw_rl.trajectories.files import TrajectoryEntry
from openclaw_rl.trajectories.importer import EntryProgress, TrajectoryImporter, score_unscored
from openclaw_rl.trajectories.redact import TrajectoryRedactor
from openclaw_rl.trajectories.report import ImportReport, trajectories_text
from openclaw_rl.trajectories.resolve import resolve_turns
from openclaw_rl.trajectories.schema import TrajectoryRefused

REFUSALS_FILE = "refused.jsonl"
_UNSUPPORTED_SUFFIXES = (".csv", ".tsv", ".txt", ".gz", ".zip", ".zst", ".yaml", ".yml", ".arrow")
"""Unsupported file suffixes. A target that ends with one is refused, not taken as a folder's name."""
_SINCE_PATTERN = re.compile(r"(\d+)(min|m|h|d|w)")
_UNIT_SECONDS = {"m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
ProgressTick = Callable[[int, int], None]
"""(bytes, trajectories) processed since the last call."""


def check_files(paths: Sequence[str], *, report: str | None) -> bool:
    """Validate files without importing. Return False if any was refused. Raises `OpenClawError` for no files."""
    files = reading.find_files([Path(p) for p in paths])
    with (
        ImportReport(Path(report) if report else None) as result,
        _byte_progress("checking", files) as tick,
    ):
        follow = _make_follower(tick)
        for entry in _iter_entries(files):
            result.counts.read += 1
            try:
                turns = len(resolve_turns(entry.parse_trajectory()))
                result.counts.count_trajectory(turns=turns, of=turns, news=False)
            except TrajectoryRefused as problem:
                result.add_refusal(entry, problem)
            follow(entry, 1)
    TerminalConsole().print(result.render_summary("valid"))
    return result.refused_count == 0


def import_files(config: Config, paths: Sequence[str], *, score: bool, report: str | None) -> bool:
    """Import files. Return False if some trajectories were refused. Raises `OpenClawError`."""
    files = reading.find_files([Path(p).expanduser() for p in paths])
    with Store.open(config.store_path) as store:
        with _hashing_progress() as show:
            importer = TrajectoryImporter(config, store, score=score, report=show)
        file = Path(report) if report else config.logs_dir / REFUSALS_FILE
        with ImportReport(file) as result, _byte_progress("importing", files) as tick:
            importer.run(_iter_entries(files), result, follow=_make_follower(tick))
    TerminalConsole().print(result.render_summary("imported"))
    return result.refused_count == 0


def score_imported(config: Config) -> None:
    """Compute the log-probabilities that an import left out. Raises `OpenClawError`."""
    columns = (TextColumn("scoring"), MofNCompleteColumn(), TimeElapsedColumn())
    with Store.open(config.store_path, create=False) as store:
        with _hashing_progress() as show:
            digest_files(store, ModelFiles.from_config(config.model).weights, report=show)
        with Progress(*columns, console=TerminalConsole(stderr=True)) as bar:
            task = bar.add_task("scoring", total=None)
            done = score_unscored(config, store, lambda n: bar.advance(task, n))
    TerminalConsole().print(f"{done} turns scored")


def export_sessions(
    config: Config,
    target: str,
    *,
    names: Sequence[str],
    since: str | None,
    form: str,
    redact: bool = False,
) -> None:
    """Export a file for each session into a folder, or everything into one .jsonl, .json or .parquet.

    `redact`: replace personal data and secrets. Raises `OpenClawError`.
    """
    path = Path(target).expanduser()
    if form == "turns" and path.suffix.lower() not in (*reading.JSONL_SUFFIXES, parquet.SUFFIX):
        raise OpenClawError(
            f"{path}: rows of turns go into one .jsonl or .parquet. Name such a file."
        )
    if not target or (path.suffix.lower() in _UNSUPPORTED_SUFFIXES and not path.is_dir()):
        raise OpenClawError(
            f"{target!r}: expected a folder, or a file that ends with .jsonl, .json or .parquet."
        )
    _check_target(path)
    with Store.open(config.store_path, create=False) as store:
        after = None if since is None else parse_since(since, time.time())
        redactor = TrajectoryRedactor(store.secret) if redact else None
        with store.read() as conn, store.read() as other:
            for name in names:
                if not count_sessions(other, names=(name,)):
                    raise OpenClawError(
                        f"--session {name}: no such session. `openclaw-rl inspect sessions` lists all."
                    )
            stored = iter_sessions(conn, names=names, since=after)
            atomic_write.remove_unfinished(
                path.parent if path.suffix.lower() in reading.SUFFIXES else path
            )
            with _count_progress(
                "exporting", count_sessions(other, names=names, since=after)
            ) as tick:
                summary = _write_sessions(other, path, _with_tick(stored, tick), form, redactor)
    summary += "" if redactor is None else redactor.summary_text
    TerminalConsole(soft_wrap=True).print(summary)


def _check_target(path: Path) -> None:
    """Raise `OpenClawError` if there is something else in the place of the file or folder, such as a pipe."""
    is_wanted, kind = (
        (path.is_file, "file")
        if path.suffix.lower() in reading.SUFFIXES
        else (path.is_dir, "folder")
    )
    if path.exists() and not is_wanted():
        raise OpenClawError(
            f"{path} exists, and is no {kind}. Name a {kind}; one that does not exist is made."
        )


def _write_sessions(
    conn: Connection,
    path: Path,
    sessions: Iterable[StoredSession],
    form: str,
    redactor: TrajectoryRedactor | None,
) -> str:
    if form == "turns":
        return _write_rows(conn, path, sessions, redactor)
    number = 0
    large = list[str]()
    one_file = path.suffix.lower() in reading.SUFFIXES
    with _open_target(path, form) if one_file else nullcontext() as add:
        for session, items in turns_by_session(conn, sessions):
            if not items:
                continue
            raw = _trajectory_json(session, items, redactor)
            number += 1
            if len(raw) > reading.ENTRY_BYTES:
                large.append(
                    session.name if redactor is None else redactor.redact_name(session.name)
                )
            if add is not None:
                add(raw)
            else:
                _write_session_file(conn, path, session, raw, False, redactor)
    if not one_file:
        os.sync()
    summary = f"{trajectories_text(number)} in {path}"
    if not large:
        return summary
    most = f"{reading.ENTRY_BYTES // 2**20} MiB, more than an import accepts"
    return f"{summary}. Above {most}: {', '.join(large[:5])}{' ...' if large[5:] else ''}"


def _write_rows(
    conn: Connection,
    path: Path,
    sessions: Iterable[StoredSession],
    redactor: TrajectoryRedactor | None,
) -> str:
    written = left = 0
    with _open_target(path, "turns") as add:
        for session, items in turns_by_session(conn, sessions):
            if redactor is not None:
                redactor.begin_session()
            for item in items:
                row = flat_rows.turn_to_row(session, item)
                if row is not None and redactor is not None:
                    row = redactor.redact_row(
                        row, redactor.redact_turn(exporter.turn_to_json(item))
                    )
                written = written + (row is not None)
                left = left + (row is None)
                if row is not None:
                    add(to_json(row))
    without = (
        f"; {left} turns without text, tokens or log-probabilities were left out" if left else ""
    )
    return f"{written} turns in {path}{without}"


@contextmanager
def _open_target(path: Path, form: str) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that appends a JSON value. The file appears if the block ends without error."""
    suffix = path.suffix.lower()
    if suffix == parquet.SUFFIX:
        parquet.import_pyarrow()
        with atomic_write.atomic_writer(path) as stream, parquet.open_writer(stream, form) as add:
            yield add
        return
    begin, between, end = (
        (b"", b"\n", b"\n") if suffix in reading.JSONL_SUFFIXES else (b"[", b",\n", b"]\n")
    )
    with atomic_write.atomic_writer(path) as stream:
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


def session_json(conn: Connection, session: StoredSession, **which: Any) -> bytes | None:
    """Return a session as one line of JSON; None without turns. `which`: see `stored_turns`."""
    items = list(stored_turns(conn, session, **which))
    return _trajectory_json(session, items, None) if items else None


def _trajectory_json(
    session: StoredSession, items: Sequence[StoredTurn], redactor: TrajectoryRedactor | None
) -> bytes:
    name = session.name
    turns = [exporter.turn_to_json(item) for item in items]
    if redactor is not None:
        redactor.begin_session()
        name = redactor.redact_name(name)
        turns = [redactor.redact_turn(turn) for turn in turns]
    return to_json({"session_id": name, "turns": turns})


def save_session(
    conn: Connection, folder: Path, session: StoredSession, **which: Any
) -> Path | None:
    """Write a session's file if its content is new, and return its path; None if there are no turns.

    `which`: see `stored_turns`.
    """
    raw = session_json(conn, session, **which)
    return None if raw is None else _write_session_file(conn, folder, session, raw, True, None)


def _write_session_file(
    conn: Connection,
    folder: Path,
    session: StoredSession,
    raw: bytes,
    sync: bool,
    redactor: TrajectoryRedactor | None,
) -> Path:
    """Write the file and return its path. `sync`: see `atomic_write.atomic_writer`."""
    stem = _file_stem(conn, session)
    if redactor is not None and (name := redactor.redact_name(session.name)) != session.name:
        stem = atomic_write.session_stem(name) + stem.removeprefix(
            atomic_write.session_stem(session.name)
        )
    path = folder / f"{stem}.json"
    atomic_write.write_if_changed(path, raw + b"\n", sync=sync)
    return path


def _file_stem(conn: Connection, session: StoredSession) -> str:
    """Return the file stem of a session. If several scopes have this name, all but the first append their scope."""
    first = first_scope(conn, session.name) == session.scope
    return atomic_write.session_stem(session.name) + ("" if first else f"~{session.scope}")


def parse_since(text: str, now: float) -> float:
    """Parse 30m, 7d, 12h, 2w, 2026-03-01 or 2026-03-01T12:00 to seconds since the epoch. Raises `OpenClawError`."""
    ago = _SINCE_PATTERN.fullmatch(text.strip())
    if ago:
        return now - int(ago[1]) * _UNIT_SECONDS[ago[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        raise OpenClawError(
            f"--since {text}: expected 30m, 12h, 7d, 2w, or a date such as 2026-03-01T12:00"
        ) from None


# ---------------------------------------------------------------------------------------- progress


def _iter_entries(files: Iterable[Path]) -> Iterator[TrajectoryEntry]:
    for file in files:
        yield from reading.read_entries(file)


def _make_follower(tick: ProgressTick) -> EntryProgress:
    """Return a callback that turns the progress of entries into bytes and finished trajectories."""
    # id() of each unfinished entry -> bytes reported so far.
    far: dict[int, int] = {}

    def report_progress(entry: TrajectoryEntry, share: float) -> None:
        before = far.pop(id(entry), 0)
        now = max(before, int(share * entry.size))
        if share < 1:
            far[id(entry)] = now
        tick(now - before, int(share == 1))

    return report_progress


class _RateColumn(ProgressColumn):
    """Trajectories per second, averaged over the whole run."""

    def render(self, task: Any) -> str:
        done = task.fields["done"]
        took = task.elapsed or 0.0
        return (
            f"{trajectories_text(done)}, {done / took:.0f}/s"
            if took > 0.5
            else trajectories_text(done)
        )


@contextmanager
def _byte_progress(what: str, files: Sequence[Path]) -> Iterator[ProgressTick]:
    total = sum(reading.file_size(file) for file in files)
    columns = (
        TextColumn(what),
        BarColumn(),
        DownloadColumn(),
        _RateColumn(),
        TextColumn("left"),
        TimeRemainingColumn(True),
    )
    with Progress(
        *columns, console=TerminalConsole(stderr=True), speed_estimate_period=60.0
    ) as bar:
        task = bar.add_task(what, total=total, done=0)

        def advance_bar(size: int, number: int) -> None:
            bar.update(task, advance=size, done=bar.tasks[0].fields["done"] + number)

        yield advance_bar


@contextmanager
def _hashing_progress() -> Iterator[ReportProgress]:
    """Show the hashing of weights that are new to the store, if it takes more than a moment."""
    columns = (
        TextColumn("hashing weights"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(True),
    )
    with Progress(*columns, console=TerminalConsole(stderr=True)) as bar:

        def show(progress: DigestProgress) -> None:
            if progress.total < NOTABLE_BYTES:
                return
            if not bar.tasks:
                bar.add_task("hashing weights")
            bar.update(bar.task_ids[0], completed=progress.done, total=progress.total)

        yield show


@contextmanager
def _count_progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(True),
    )
    with Progress(*columns, console=TerminalConsole(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def _with_tick(
    sessions: Iterable[StoredSession], tick: Callable[[], None]
) -> Iterator[StoredSession]:
    for session in sessions:
        yield session
        tick()
