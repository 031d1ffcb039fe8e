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
    if path is None:
        return None
    # As text: a trainer reads ten thousand of them when it starts, and objects of paths take ten times as long.
    folder, _, name = path.rpartition("/")
    if folder.rpartition("/")[2] != POLICIES_FOLDER:
        return path
    return f"{_home_of(conn)}/{POLICIES_FOLDER}/{name}"


def _home_of(conn: Connection) -> Path:
    """Return the absolute folder of the store."""
    store = str(conn.engine.url.database)
    if not store.startswith("/"):
        store = str(Path(store).absolute())
    return _resolve_folder(store)


@lru_cache(maxsize=16)
def _resolve_folder(store: str) -> Path:
    """Resolving asks the system for each folder above, and this is asked for each version that is read."""
    return Path(store).parent.resolve()
