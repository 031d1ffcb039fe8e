"""Paths of the folders of versions. The store has them relative to the home, so that a home can be moved and copied."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from sqlalchemy import Connection

from openclaw_rl.store.bootstrap import POLICIES_FOLDER


def stored_path(conn: Connection, path: str | None) -> str | None:
    """Return the path relative to the home for a folder of the home's versions, any other path unchanged."""
    if path is None or Path(path).parent.resolve() != (_home_of(conn) / POLICIES_FOLDER).resolve():
        return path
    return f"{POLICIES_FOLDER}/{Path(path).name}"


def resolved_path(conn: Connection, path: str | None) -> str | None:
    """Return the absolute path of a stored one.

    Stores of version 0.1 have absolute paths, which may be those of another home if this one was moved or copied.
    """
    if path is None or Path(path).parent.name != POLICIES_FOLDER:
        return path
    return str(_home_of(conn) / POLICIES_FOLDER / Path(path).name)


def _home_of(conn: Connection) -> Path:
    """Return the absolute folder of the store."""
    database = str(conn.engine.url.database)
    return _folder_of(database) if Path(database).is_absolute() else Path(database).parent.resolve()


@lru_cache(maxsize=64)
def _folder_of(database: str) -> Path:
    """Return the folder of a store without links, which takes a call of the system for each part of its path."""
    return Path(database).parent.resolve()
