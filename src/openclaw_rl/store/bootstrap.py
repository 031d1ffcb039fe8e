"""Prepares the store file: creates, checks, backs up and migrates it; translates errors of the file and the disk.

A store that was lost is not replaced by an empty one: other files of the home show that it existed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from openclaw_rl.common import disk_space, gateway_address
from openclaw_rl.errors import DiskFull, StoreError
from openclaw_rl.store.migrations import MIGRATIONS, Migration

log = logging.getLogger("openclaw_rl.store")
BUSY_TIMEOUT = 10.0
"""Seconds that a writer waits for the write lock."""
POLICIES_FOLDER = "policies"
"""Folder beside the store with a folder for each policy version."""
_FOLDER_NAME = re.compile(r"(\d{6,})-[0-9a-f]{8}")
_LOG_CHECKS = 4
_OTHER_TABLES = re.compile(
    r"^no such (table|column)|^duplicate column|^(table|index|there is).* already"
)
"""Messages of SQLite about a store that does not have the tables of its schema number."""
_MESSAGES = {
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


_FULL_DISK_CODES = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
"""What SQLite reports instead of `SQLITE_FULL` for a quota, and for its index of the write-ahead log."""


def prepare_store(
    path: Path, *, create: bool, migrations: Sequence[Migration] = MIGRATIONS
) -> None:
    """Create or migrate the file at `path` to schema `len(migrations)`. Raises `StoreError`.

    Several processes may call this at once: the decision what to do is made under the write lock. A store of an older
    schema is migrated by one of them, for which the others wait as long as it takes: the backup grows with the store.
    """
    _check_path(path, create=create)
    # Read before the store, to which the trainer may add versions.
    newest_folder = _newest_folder(path)
    with translate_errors(path), closing(_open_connection(path)) as conn:
        # Before the file is modified.
        _refuse_newer(path, schema_number(path, conn), len(migrations))
        _switch_to_wal(conn)
        if schema_number(path, conn) == len(migrations):
            if create:
                _refuse_lost_versions(path, conn, newest_folder)
            return
        if schema_number(path, conn) == 0:
            _migrate_in_transaction(path, conn, migrations, create=create)
            return
        with _migration_turn(path):
            schema = schema_number(path, conn)
            if schema == len(migrations):
                return
            version = _data_version(conn)
            _back_up(path, schema)
            _migrate_in_transaction(path, conn, migrations, create=create, backed_up=version)


@contextmanager
def _migration_turn(path: Path) -> Iterator[None]:
    """Wait until no other process migrates the store. The lock ends with the process that holds it."""
    with path.with_name(f"{path.name}.migration.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _data_version(conn: sqlite3.Connection) -> int:
    """Return a number that changes when another process commits."""
    return int(conn.execute("PRAGMA data_version").fetchone()[0])


def _migrate_in_transaction(
    path: Path,
    conn: sqlite3.Connection,
    migrations: Sequence[Migration],
    *,
    create: bool,
    backed_up: int | None = None,
) -> None:
    """Run the migrations. `backed_up`: data version of the backup, which is repeated if there were commits since."""
    conn.execute("BEGIN IMMEDIATE")
    try:
        schema = schema_number(path, conn)
        if 0 < schema < len(migrations) and _data_version(conn) != backed_up:
            _back_up(path, schema)
        _run_migrations(path, conn, migrations, create=create)
    except BaseException:
        # Also roll back on an interrupt.
        if conn.in_transaction:
            conn.rollback()
        raise
    conn.commit()


def schema_number(path: Path, conn: sqlite3.Connection) -> int:
    """Return the schema number; 0 for an empty file. Raises `StoreError` for a database of another program."""
    names = {
        name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    }
    if not names:
        return 0
    row = (
        conn.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        if "meta" in names
        else None
    )
    if row is None:
        raise StoreError(
            f"store {path}: a SQLite database, but not one of openclaw-rl. Expected a store: choose another path."
        )
    try:
        number = int(row[0])
    except ValueError:
        number = -1
    if number < 0:
        raise damaged_error(path, f"the number of its schema is {row[0]!r}")
    return number


def _check_path(path: Path, *, create: bool) -> None:
    if os.path.lexists(path.parent) and not path.parent.is_dir():
        raise StoreError(
            f"store {path}: {path.parent} is a file, or a link that leads nowhere. Expected the folder of a home: "
            "choose another one (--home)."
        )
    if path.is_dir():
        raise StoreError(
            f"store {path}: this is a folder. Expected a file: choose one inside it, such as {path}/store.db."
        )
    if reason := lost_store_reason(path):
        raise StoreError(f"store {path}: {reason}")
    if path.exists():
        return
    if not create:
        raise StoreError(
            f"store {path}: there is no store yet. `openclaw-rl up` creates it; --home selects another home."
        )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreError(
            f"store {path}: cannot be created ({error.strerror}). Give this user the right to write the folder "
            "(and free disk space), or choose another path."
        ) from error


def lost_store_reason(path: Path) -> str | None:
    """Return what is missing and what to do if the store or its write-ahead log was deleted, else None."""
    log = path.with_name(f"{path.name}-wal")
    index = path.with_name(f"{path.name}-shm")
    # A gateway writes it after it has opened the store.
    gateway = path.with_name(gateway_address.FILE_NAME)
    signs = {
        f"its write-ahead log {log.name}": log.exists(),
        f"versions in {path.parent / POLICIES_FOLDER}": _newest_folder(path) > 0,
        gateway.name: gateway.exists(),
    }
    # Read after the signs: another process may create the store now.
    exists = path.exists()
    if exists and path.stat().st_size:
        if not _is_log_deleted(log, index):
            return None
        return (
            f"its write-ahead log {log.name} was deleted, and with it the newest replies and versions. Restore it, or "
            f"a backup of the whole home. To continue without them, delete {index.name}."
        )
    seen = [sign for sign, is_seen in signs.items() if is_seen]
    if not seen:
        return None
    what = "is empty" if exists else "is missing"
    return (
        f"the file {what}, but the home has {' and '.join(seen)}. Expected the store of this home: restore "
        f"{path.name} from a backup, or choose another home (--home) for an empty store."
    )


def _is_log_deleted(log: Path, index: Path) -> bool:
    """Return whether the write-ahead log was deleted, but not its index: SQLite always deletes the index first.

    If both were deleted, only lost versions can be seen (`_refuse_lost_versions`).
    """
    # Another process may open or close the store between the two questions.
    for _ in range(_LOG_CHECKS):
        if log.exists() or not index.exists():
            return False
        time.sleep(0.05)
    return True


def _newest_folder(path: Path) -> int:
    """Return the highest version of the folders that belong to the store; 0 without one."""
    folder = path.parent / POLICIES_FOLDER
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        # Missing, or not readable: whoever needs it says so.
        return 0
    newest = 0
    for name in names:
        match = _FOLDER_NAME.fullmatch(name)
        if match is not None:
            newest = max(newest, int(match[1]))
    return newest


def _refuse_lost_versions(path: Path, conn: sqlite3.Connection, newest_folder: int) -> None:
    """Raise `StoreError` if a version in the folder must have had a parent that the store does not know.

    A trainer that dies before it publishes leaves a folder of the version after the newest, but never a later one.
    """
    newest = conn.execute("SELECT coalesce(max(version), 0) FROM policies").fetchone()[0]
    if newest_folder > newest + 1:
        raise StoreError(
            f"store {path}: its newest version is {newest}, but {path.parent / POLICIES_FOLDER} has version "
            f"{newest_folder}. The store lost commits, because it or its write-ahead log was replaced by an older one. "
            f"Restore the newer {path.name}, or move the folders of the versions above {newest} away to continue from "
            f"version {newest}."
        )


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


def _refuse_newer(path: Path, schema: int, known: int) -> None:
    if schema > known:
        raise StoreError(
            f"store {path}: its schema is {schema}, and this openclaw-rl supports up to {known}. "
            "Expected the same or an older one: use the newer openclaw-rl that wrote it, or another path."
        )


def _run_migrations(
    path: Path, conn: sqlite3.Connection, migrations: Sequence[Migration], *, create: bool
) -> None:
    schema = schema_number(path, conn)
    _refuse_newer(path, schema, len(migrations))
    if schema == 0 and not create:
        raise StoreError(
            f"store {path}: an empty file. Expected a store: start `openclaw-rl up`, or wait until it has started."
        )
    for migration in migrations[schema:]:
        migration(conn)
    conn.execute(
        "INSERT INTO meta (key, value) VALUES ('schema', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (str(len(migrations)).encode(),),
    )


def backup_path(path: Path, schema: int) -> Path:
    return path.with_name(f"{path.name}.schema-{schema}.backup")


def _back_up(path: Path, schema: int) -> None:
    """Copy the store to a file beside it, atomically. Neither readers nor writers are blocked."""
    target = backup_path(path, schema)
    log.info(
        "the store is copied to %s before its tables change: %.0f MB",
        target.name,
        path.stat().st_size / 1e6,
    )
    unfinished = target.with_name(f"{target.name}.{os.getpid()}.unfinished")
    with closing(_open_connection(path)) as source, closing(sqlite3.connect(unfinished)) as copy:
        source.backup(copy)
    unfinished.chmod(0o600)
    unfinished.replace(target)


def damaged_error(path: Path, reason: str) -> StoreError:
    """Return the error for a store whose content is not what openclaw-rl writes."""
    return StoreError(f"store {path}: {_MESSAGES[sqlite3.SQLITE_CORRUPT]} ({reason})")


def to_store_error(path: Path, error: BaseException | None) -> StoreError | None:
    """Return the `StoreError` for an error of file or disk; None for any other (an error in our statements)."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return None
    if code == sqlite3.SQLITE_ERROR and _OTHER_TABLES.search(str(error)):
        return damaged_error(path, str(error))
    primary = code & 0xFF
    is_disk_full = primary == sqlite3.SQLITE_FULL
    if primary in _FULL_DISK_CODES:
        is_disk_full = disk_space.is_full(path.parent)
    if is_disk_full:
        return DiskFull(
            f"store {path}: the disk (or its quota) is full, so nothing was written. Free some space; no data is lost. "
            f"(SQLite: {error})"
        )
    message = _MESSAGES.get(primary)
    if message is None:
        return None
    return StoreError(f"store {path}: {message} (SQLite: {error})")


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
