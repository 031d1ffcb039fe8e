"""One SQLite file, opened: a pool of connections, reads in a snapshot, writes under the lock."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, select
from sqlalchemy.pool import QueuePool

from openclaw_rl.store import schema
from openclaw_rl.store.bootstrap import BUSY_TIMEOUT, prepare
from openclaw_rl.store.sqlite_errors import translated

_PRAGMAS = ("synchronous=FULL", "foreign_keys=ON", "journal_size_limit=67108864", "cache_size=-16384")


class Store:
    """Thread-safe; one per process. Every call may raise `StoreError` when file or disk fail."""

    def __init__(self, path: Path, engine: Engine, secret: bytes) -> None:
        self.path = path
        self.secret = secret
        """32 bytes: the key of the hashes by which messages are matched. It never leaves the store."""
        self._reads = engine
        self._writes = engine.execution_options(begin="BEGIN IMMEDIATE")
        self._watch = sqlite3.connect(path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
        self._watch_lock = threading.Lock()
        self._seen: int | None = None

    @staticmethod
    def open(path: Path, *, create: bool = True) -> Store:
        """The store at `path`, with the newest schema: an older one is copied beside the file and migrated.

        Raises `StoreError` when the file is missing (and not to be created), damaged, too new, not a store, or not
        writable, and when the disk is full.
        """
        path = Path(path)
        prepare(path, create=create)
        engine = _engine(path)
        with translated(path), engine.connect() as conn:
            secret = conn.scalar(select(schema.meta.c.value).where(schema.meta.c.key == "secret"))
        assert isinstance(secret, bytes), "migration 1 writes the secret"
        return Store(path, engine, secret)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A snapshot: what others commit meanwhile is not seen. Never waits for writers."""
        with translated(self.path), self._reads.connect() as conn:
            yield conn

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Alone under the write lock; committed (and on the disk) at the end, rolled back when the block raises."""
        with translated(self.path), self._writes.begin() as conn:
            yield conn

    def changed(self) -> bool:
        """Whether anybody has committed since this was last asked (the first time: True). A few microseconds."""
        with self._watch_lock, translated(self.path):
            (version,) = self._watch.execute("PRAGMA data_version").fetchone()
            seen, self._seen = self._seen, version
        return bool(seen != version)

    def close(self) -> None:
        self._reads.dispose()
        with self._watch_lock:
            self._watch.close()


def _engine(path: Path) -> Engine:
    engine = create_engine(
        URL.create("sqlite+pysqlite", database=str(path)),
        poolclass=QueuePool,
        pool_size=4,
        max_overflow=28,
        hide_parameters=True,  # values are people's words: they belong into no message and no log
        connect_args={"timeout": BUSY_TIMEOUT, "check_same_thread": False},
    )
    event.listen(engine, "connect", _connected)
    event.listen(engine, "begin", _begun)
    return engine


def _connected(dbapi_connection: Any, _record: Any) -> None:
    dbapi_connection.isolation_level = None  # no BEGIN by the driver: `_begun` says which one
    for pragma in _PRAGMAS:
        dbapi_connection.execute(f"PRAGMA {pragma}")


def _begun(conn: Connection) -> None:
    conn.exec_driver_sql(conn.get_execution_options().get("begin", "BEGIN"))
