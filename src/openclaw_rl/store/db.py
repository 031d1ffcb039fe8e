"""The open store: a connection pool on one SQLite file, snapshot reads, and writes under the write lock."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Self

from sqlalchemy import (
    URL,
    Connection,
    Dialect,
    Engine,
    Insert,
    Select,
    Update,
    create_engine,
    event,
    select,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.pool import QueuePool

from openclaw_rl.store import schema
from openclaw_rl.store.bootstrap import BUSY_TIMEOUT, damaged_error, prepare_store, translate_errors
from openclaw_rl.store.writing.store_writer import StoreWriter
from openclaw_rl.store.writing.write_queue import WriteQueue

_PRAGMAS = ("foreign_keys=ON", "journal_size_limit=67108864")
_CACHE_MIB = 16
# Seconds between two attempts to take the write lock.
_LOCK_POLL_SECONDS = 0.001
_compiled: dict[tuple[int, tuple[str, ...]], tuple[str, tuple[str, ...], Mapping[str, Any]]] = {}


class Store:
    """The store of a process; thread-safe. Every call raises `StoreError` if the file or the disk fails."""

    def __init__(self, path: Path, engine: Engine, secret: bytes) -> None:
        self.path = path
        self.secret = secret
        """Key of the message hashes, 32 bytes. It never leaves the store."""
        self._read_engine = engine
        self._write_engine = engine.execution_options(write="FULL")
        self._lazy_write_engine = engine.execution_options(write="NORMAL")
        self._queue = WriteQueue(path)
        self._watch_connection = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False
        )
        self._watch_lock = threading.Lock()
        self._seen_version: int | None = None

    @staticmethod
    def open(path: Path, *, create: bool = True, cache_mib: int = _CACHE_MIB) -> Store:
        """Open the store at `path`; a store with an older schema is backed up beside the file and migrated.

        `cache_mib`: memory that each connection may keep for parts of the file. Raises `StoreError` if the file is
        missing and `create` is false, if it is damaged, too new, not a store or not writable, or if the disk is full.
        """
        path = Path(path)
        prepare_store(path, create=create)
        engine = _open_engine(path, cache_mib)
        with translate_errors(path), engine.connect() as conn:
            secret = conn.scalar(select(schema.meta.c.value).where(schema.meta.c.key == "secret"))
        if not isinstance(secret, bytes):
            raise damaged_error(path, "its key of the message hashes is missing")
        return Store(path, engine, secret)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a snapshot that does not see later commits. It never waits for writers."""
        with translate_errors(self.path), self._read_engine.connect() as conn:
            yield conn

    @contextmanager
    def write(self, *, durable: bool = True) -> Iterator[Connection]:
        """Open a transaction under the write lock; it is committed to disk at the end, or rolled back on an error.

        `durable=False` is for what can be derived again: the commit does not wait for the disk. A power failure may
        undo it, together with all later commits that are not durable; a crash of the process or a kill does not.
        """
        engine = self._write_engine if durable else self._lazy_write_engine
        with translate_errors(self.path), self._queue.wait_turn(), engine.begin() as conn:
            yield conn

    def open_writer(self) -> StoreWriter:
        """Return a writer with a connection of its own. The caller closes it."""
        return StoreWriter(self.path, self._write_engine, self._queue)

    def has_changed(self) -> bool:
        """Return whether anyone has committed since the last call (True on the first). Takes a few microseconds."""
        with self._watch_lock, translate_errors(self.path):
            (version,) = self._watch_connection.execute("PRAGMA data_version").fetchone()
            seen = self._seen_version
            self._seen_version = version
        return bool(seen != version)

    def has_row(self, statement: Select[Any], values: Mapping[str, Any]) -> bool:
        """Return whether a query finds a row. Takes some microseconds with an index, so event loops may call it.

        The statement must be a module constant, as the compiled text is cached by its `id`.
        """
        text, names, fixed = _compile_once(statement, (), self._read_engine.dialect)
        bound = [values[name] if name in values else fixed[name] for name in names]
        try:
            with self._watch_lock:
                # `fetchall` ends the statement, which would hold its snapshot.
                return bool(self._watch_connection.execute(text, bound).fetchall())
        except sqlite3.Error:
            with translate_errors(self.path):
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self._read_engine.dispose()
        self._queue.close()
        with self._watch_lock:
            self._watch_connection.close()


def _open_engine(path: Path, cache_mib: int) -> Engine:
    engine = create_engine(
        URL.create("sqlite+pysqlite", database=str(path)),
        poolclass=QueuePool,
        pool_size=4,
        max_overflow=28,
        # Values are text of conversations, which must not appear in errors or logs.
        hide_parameters=True,
        connect_args={"timeout": BUSY_TIMEOUT, "check_same_thread": False},
    )

    def configure(dbapi_connection: Any, _record: Any) -> None:
        _configure_connection(dbapi_connection, cache_mib)

    event.listen(engine, "connect", configure)
    event.listen(engine, "begin", _begin_transaction)
    return engine


def _configure_connection(dbapi_connection: Any, cache_mib: int) -> None:
    # The driver sends no BEGIN; `_begin_transaction` does.
    dbapi_connection.isolation_level = None
    for pragma in (*_PRAGMAS, f"cache_size=-{cache_mib * 1024}"):
        dbapi_connection.execute(f"PRAGMA {pragma}")


def _begin_transaction(conn: Connection) -> None:
    synchronous = conn.get_execution_options().get("write")
    if synchronous:
        _begin_write(conn, synchronous)
    else:
        conn.exec_driver_sql("BEGIN")


def _begin_write(conn: Connection, synchronous: str) -> None:
    """Begin a transaction that holds the write lock, and wait for it in short steps.

    The caller has its turn in the `WriteQueue`, so that only writers without a turn are waited for. SQLite itself waits
    in steps that grow to 100 ms, and a finished reply would wait long behind them.
    """
    connection: Any = conn.connection
    give_up = time.monotonic() + BUSY_TIMEOUT
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute("PRAGMA busy_timeout=0")
    try:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if (
                    error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY
                    or time.monotonic() > give_up
                ):
                    raise
            time.sleep(_LOCK_POLL_SECONDS)
    finally:
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT * 1000:.0f}")


def fast_executemany(
    conn: Connection, statement: Insert | Update, rows: Iterable[Mapping[str, Any]]
) -> int:
    """Execute a statement for one or more rows with the same keys; return the number of changed rows.

    It takes a tenth of the time of `Connection.execute`, with which the nine statements of a reply cost 0.4 ms.
    The statement must be a module constant, as the compiled text is cached by its `id`.
    Values must be of the driver's types: str, int, float, bytes, None.
    """
    rest = iter(rows)
    first = next(rest)
    text, names, fixed = _compile_once(statement, tuple(first), conn.dialect)
    # SQLAlchemy's type of it does not accept an iterator.
    cursor: Any = conn.connection.cursor()
    try:
        cursor.executemany(
            text,
            ([row[n] if n in row else fixed[n] for n in names] for row in chain([first], rest)),
        )
        return int(cursor.rowcount)
    except sqlite3.IntegrityError as error:
        # As SQLAlchemy would raise it.
        raise IntegrityError(text, None, error) from error
    finally:
        cursor.close()


def _compile_once(
    statement: Insert | Update | Select[Any], columns: tuple[str, ...], dialect: Dialect
) -> tuple[str, tuple[str, ...], Mapping[str, Any]]:
    """Return a statement's text, the names of its parameters in order, and the values that it states itself."""
    key = (id(statement), columns)
    if key not in _compiled:
        compiled = statement.compile(dialect=dialect, column_keys=list(columns) or None)
        _compiled[key] = (compiled.string, tuple(compiled.positiontup or ()), compiled.params)
    return _compiled[key]
