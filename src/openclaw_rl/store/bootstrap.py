"""Prepares the store file: creates, checks, backs up and migrates it; translates errors of the file and the disk."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from openclaw_rl.errors import StoreError
from openclaw_rl.store.migrations import MIGRATIONS, Migration

BUSY_TIMEOUT = 10.0
"""Seconds that a writer waits for the write lock."""
_MESSAGES = {
    sqlite3.SQLITE_FULL: "the disk (or its quota) is full, so nothing was written. Free some space; no data is lost.",
    sqlite3.SQLITE_CORRUPT: "the file is damaged. Stop everything, keep a copy, and restore a backup "
    "(or save what can be read with `sqlite3 FILE .recover`).",
    sqlite3.SQLITE_NOTADB: "this is not a SQLite file, or its beginning was overwritten. "
    "Expected a store of openclaw-rl: choose another path, or move the file away to start with an empty store.",
    sqlite3.SQLITE_READONLY: "the file or its folder is not writable. Give this user the right to write both.",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened. Give this user the right to read and write file and folder.",
    sqlite3.SQLITE_PERM: "this user may not open the file. Give this user the right to read and write file and folder.",
    sqlite3.SQLITE_IOERR: "reading or writing the disk failed. Check the system's log; a network folder "
    "cannot hold a store.",
    sqlite3.SQLITE_BUSY: "another process has held the write lock for too long. Look for a suspended or frozen process "
    "that has the store open.",
}


def prepare_store(path: Path, *, create: bool, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Create or migrate the file at `path` to schema `len(migrations)`. Raises `StoreError`.

    Several processes may call this at once: the decision what to do is made under the write lock.
    """
    _check_path(path, create=create)
    with translate_errors(path), closing(_open_connection(path)) as conn:
        _refuse_newer(path, schema_number(path, conn), len(migrations))  # before the file is modified
        _switch_to_wal(conn)
        if schema_number(path, conn) == len(migrations):
            return
        conn.execute("BEGIN IMMEDIATE")
        try:
            _run_migrations(path, conn, migrations, create=create)
        except BaseException:  # also roll back on an interrupt
            if conn.in_transaction:
                conn.rollback()
            raise
        conn.commit()


def schema_number(path: Path, conn: sqlite3.Connection) -> int:
    """Return the schema number; 0 for an empty file. Raises `StoreError` for a database of another program."""
    names = {name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not names:
        return 0
    row = conn.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() if "meta" in names else None
    if row is None:
        raise StoreError(
            f"store {path}: a SQLite database, but not one of openclaw-rl. Expected a store: choose another path."
        )
    return int(row[0])


def _check_path(path: Path, *, create: bool) -> None:
    if path.is_dir():
        raise StoreError(
            f"store {path}: this is a folder. Expected a file: choose one inside it, such as {path}/store.db."
        )
    if path.exists():
        return
    if not create:
        raise StoreError(f"store {path}: no such file. Expected an existing store: start `openclaw-rl up` once first.")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreError(
            f"store {path}: cannot be created ({error.strerror}). Give this user the right to write the folder "
            "(and free disk space), or choose another path."
        ) from error


def _open_connection(path: Path) -> sqlite3.Connection:
    conn = sqlite3.connect(path, timeout=BUSY_TIMEOUT, isolation_level=None)
    conn.execute("PRAGMA synchronous=FULL")
    return conn


def _switch_to_wal(conn: sqlite3.Connection) -> None:
    """Switch to WAL mode. It needs exclusive access, for which SQLite does not always wait, so this retries."""
    give_up = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            conn.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.01)


def _refuse_newer(path: Path, found: int, known: int) -> None:
    if found > known:
        raise StoreError(
            f"store {path}: its schema is {found}, and this openclaw-rl supports up to {known}. "
            "Expected the same or an older one: use the newer openclaw-rl that wrote it, or another path."
        )


def _run_migrations(path: Path, conn: sqlite3.Connection, migrations: Sequence[Migration], *, create: bool) -> None:
    found = schema_number(path, conn)
    _refuse_newer(path, found, len(migrations))
    if found == 0 and not create:
        raise StoreError(f"store {path}: an empty file. Expected a store: start `openclaw-rl up` once first.")
    if 0 < found < len(migrations):
        _back_up(path, found)
    for migration in migrations[found:]:
        migration(conn)
    conn.execute(
        "INSERT INTO meta (key, value) VALUES ('schema', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (str(len(migrations)).encode(),),
    )


def backup_path(path: Path, schema: int) -> Path:
    return path.with_name(f"{path.name}.schema-{schema}.backup")


def _back_up(path: Path, schema: int) -> None:
    """Copy the store to a file beside it, atomically. The caller holds the write lock; readers are not blocked."""
    target = backup_path(path, schema)
    unfinished = target.with_name(f"{target.name}.{os.getpid()}.unfinished")
    with closing(_open_connection(path)) as source, closing(sqlite3.connect(unfinished)) as copy:
        source.backup(copy)
    unfinished.chmod(0o600)
    unfinished.replace(target)


def to_store_error(path: Path, error: BaseException | None) -> StoreError | None:
    """Return the `StoreError` for an error of file or disk; None for any other (an error in our statements)."""
    code = getattr(error, "sqlite_errorcode", None)
    words = _MESSAGES.get(code & 0xFF) if code is not None else None
    return StoreError(f"store {path}: {words} (SQLite: {error})") if words else None


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Raise errors of file or disk as `StoreError`; all others pass unchanged."""
    try:
        yield
    except (sqlite3.Error, DBAPIError) as error:
        store_error = to_store_error(path, error.orig if isinstance(error, DBAPIError) else error)
        if store_error is None:
            raise
        raise store_error from error
