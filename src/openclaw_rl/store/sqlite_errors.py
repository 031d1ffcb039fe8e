"""Translates SQLite errors of file and disk into `StoreError` messages that a user can act on."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from openclaw_rl.errors import StoreError

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


def to_store_error(path: Path, error: sqlite3.Error) -> StoreError | None:
    """Return the `StoreError` for an error of file or disk; None for any other (an error in our statements)."""
    code = getattr(error, "sqlite_errorcode", None)
    words = _MESSAGES.get(code & 0xFF) if code is not None else None
    return StoreError(f"store {path}: {words} (SQLite: {error})") if words else None


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Raise errors of file or disk as `StoreError`; all others pass unchanged."""
    try:
        yield
    except sqlite3.Error as error:
        store_error = to_store_error(path, error)
        if store_error is None:
            raise
        raise store_error from error
    except DBAPIError as error:
        store_error = to_store_error(path, error.orig) if isinstance(error.orig, sqlite3.Error) else None
        if store_error is None:
            raise
        raise store_error from error
