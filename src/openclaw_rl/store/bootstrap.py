"""Prepares the store file: creates, checks, backs up and migrates it to the newest schema."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from openclaw_rl.errors import StoreError
from openclaw_rl.store.migrations import MIGRATIONS, Migration
from openclaw_rl.store.sqlite_errors import translate_errors

BUSY_TIMEOUT = 10.0
"""Seconds that a writer waits for the write lock."""


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
