"""A writer of many small transactions with a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine

from openclaw_rl.store.bootstrap import translate_errors
from openclaw_rl.store.writing.write_queue import WriteQueue


class StoreWriter:
    """Writes many small transactions on one connection, and recognises commits by others; thread-safe.

    SQLite keeps the pages of a connection in memory until another connection commits, and a connection of the pool is
    prepared for each transaction: both take longer than the statements of a reply.
    """

    def __init__(self, path: Path, engine: Engine, queue: WriteQueue) -> None:
        """`engine`: begins its transactions under the write lock."""
        self._path = path
        self._engine = engine
        self._queue = queue
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._seen_version: int | None = None

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction as `Store.write` does. It is committed to disk at the end, or rolled back on an error."""
        with self._lock, translate_errors(self._path):
            conn = self._open_connection()
            try:
                with self._queue.wait_turn(), conn.begin():
                    yield conn
            except BaseException:
                # What state the connection is in after an error, only a new one knows for sure.
                self._close_connection()
                raise

    def others_have_changed(self) -> bool:
        """Return whether anyone but this writer has committed since the last call (True on the first).

        Waits for the transaction of another thread, if there is one.
        """
        with self._lock, translate_errors(self._path):
            # SQLite changes the number for the commits of all other connections, of this process too.
            row = self._open_connection().connection.cursor().execute("PRAGMA data_version")
            (version,) = row.fetchone()
            seen = self._seen_version
            self._seen_version = version
        return bool(seen != version)

    def close(self) -> None:
        with self._lock:
            self._close_connection()

    def _open_connection(self) -> Connection:
        if self._connection is None:
            self._connection = self._engine.connect()
            # The numbers of two connections cannot be compared.
            self._seen_version = None
        return self._connection

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
