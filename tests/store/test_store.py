"""Opening, migrating, failing in words, and two processes at once."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, bindparam, event, insert, inspect, select
from sqlalchemy.exc import IntegrityError
from tests.store.world import reply, request, serve

from openclaw_rl.errors import StoreError
from openclaw_rl.store import (
    bootstrap,
    events,
    exchanges,
    heartbeats,
    leases,
    page_tables,
    schema,
    turns,
)
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import live_scores, policies, policy_names, training_queue
from openclaw_rl.store.migrations import MIGRATIONS, run_script
from openclaw_rl.store.trust import tables
from openclaw_rl.types import TurnState

HERE = Path(__file__).parent.parent.parent


def test_a_new_store_is_private_and_durable(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "home" / "sub" / "st?o#r%e.db")
    with store.read() as conn:
        settings = [
            conn.exec_driver_sql(f"PRAGMA {p}").scalar()
            for p in ("journal_mode", "synchronous", "foreign_keys")
        ]
    assert settings == ["wal", 2, 1]
    assert store.path.stat().st_mode & 0o777 == 0o600
    assert store.path.parent.stat().st_mode & 0o777 == 0o700
    secret = store.secret
    store.close()
    again = Store.open(store.path, create=False)
    assert (len(secret), again.secret) == (32, secret)
    again.close()


def test_the_tables_match_the_migrations(store: Store) -> None:
    """Columns, types, keys and indexes, both ways."""
    assert tables.judge_trust.metadata is schema.metadata
    assert page_tables.acts.metadata is schema.metadata
    with store.read() as conn:
        made = inspect(conn)
        assert set(made.get_table_names()) == set(schema.metadata.tables)
        for name, table in schema.metadata.tables.items():
            columns = {c["name"]: (str(c["type"]), c["nullable"]) for c in made.get_columns(name)}
            assert columns == {
                c.name: (str(c.type.compile(conn.dialect)), c.nullable) for c in table.columns
            }, name
            assert made.get_pk_constraint(name)["constrained_columns"] == [
                c.name for c in table.primary_key
            ], name
            assert {i["name"]: i["column_names"] for i in made.get_indexes(name)} == {
                str(i.name): [c.name for c in i.columns] for i in table.indexes
            }, name
            keys = {
                (*f["constrained_columns"], f["referred_table"])
                for f in made.get_foreign_keys(name)
            }
            assert keys == {(f.parent.name, f.column.table.name) for f in table.foreign_keys}, name


def test_commits_of_other_processes_are_noticed(store: Store) -> None:
    assert store.has_changed(), "the first look is always worth while"
    assert not store.has_changed()
    other = Store.open(store.path)
    with other.write() as conn:
        events.append(conn, "a", "b", {}, 1.0)
    assert store.has_changed()
    assert not store.has_changed()
    other.close()


def test_a_write_that_raises_is_rolled_back(store: Store) -> None:
    def half_way(conn: Connection) -> None:
        serve(conn, "a")
        raise RuntimeError("half way")

    def twice(conn: Connection) -> None:
        serve(conn, "a")
        serve(conn, "a")

    for block, error in ((half_way, RuntimeError), (twice, IntegrityError)):
        with pytest.raises(error), store.write() as conn:
            block(conn)
    with store.read() as conn:
        assert (events.last_seq(conn), exchanges.get(conn, "a")) == (0, None)


def test_a_read_sees_one_snapshot(store: Store) -> None:
    with store.read() as conn:
        assert events.last_seq(conn) == 0
        with store.write() as other:
            events.append(other, "a", "b", {}, 1.0)
        assert events.last_seq(conn) == 0
    with store.read() as conn:
        assert events.last_seq(conn) == 1


def test_events_cursors_and_heartbeats_are_stored(store: Store) -> None:
    with store.write() as conn:
        for n in range(5):
            events.append(conn, "odd" if n % 2 else "even", str(n), {"n": n}, float(n))
        events.move_cursor(conn, "me", 3)
        events.move_cursor(conn, "me", 4)
    heartbeats.write_heartbeat(store, "collect", "one")
    heartbeats.write_heartbeat(store, "collect", "two", state="degraded")
    with store.read() as conn:
        assert [e.ref for e in events.read_after(conn, 1, 2)] == ["1", "2"]
        assert [e.data for e in events.read_after(conn, 0, 9, ["odd"])] == [{"n": 1}, {"n": 3}]
        assert (
            events.last_seq(conn),
            events.read_cursor(conn, "me"),
            events.read_cursor(conn, "you"),
        ) == (5, 4, 0)
        (beat,) = heartbeats.read_heartbeats(conn)
    assert (beat.name, beat.note, beat.state, beat.pid) == (
        "collect",
        "two",
        "degraded",
        os.getpid(),
    )


def test_a_starting_worker_is_alive_while_its_process_runs(store: Store) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for name, state, pid in (
        ("train", heartbeats.STARTING, os.getpid()),
        ("data", heartbeats.STARTING, gone.pid),
        ("judge", heartbeats.RUNNING, os.getpid()),
    ):
        heartbeats.write_heartbeat(store, name, state=state, pid=pid)
    with store.read() as conn:
        beats = heartbeats.read_heartbeats(conn)
    now = beats[0].at
    assert [beat.is_alive(now + 1, 10.0) for beat in beats] == [True, True, True]
    assert {beat.name: beat.is_alive(now + 300, 10.0) for beat in beats} == {
        "train": True,
        "data": False,
        "judge": False,
    }


def test_a_store_is_shared_by_threads(store: Store) -> None:
    def work(name: str) -> None:
        for n in range(10):
            with store.write() as conn:
                serve(conn, f"{name}-{n}")
            with store.read() as conn:
                assert exchanges.get(conn, f"{name}-{n}") is not None

    threads = [threading.Thread(target=work, args=(str(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.read() as conn:
        assert turns.count_by_state(conn) == {TurnState.SERVED: 40}
        assert events.last_seq(conn) == 80


# --- what can be wrong with the file -----------------------------------------------------------------------------


def refused(path: Path, *words: str, create: bool = True) -> None:
    with pytest.raises(StoreError) as caught:
        Store.open(path, create=create)
    for word in (str(path), *words):
        assert word in str(caught.value)


def test_a_missing_store_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none.db", "no store yet", "openclaw-rl up", create=False)
    assert not list(tmp_path.iterdir())


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.touch()
    refused(path, "empty file", create=False)
    Store.open(path).close()


def test_a_folder_as_store_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "this is a folder", "Expected a file")


def test_a_file_as_home_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(tmp_path / "file" / "store.db", "Expected the folder of a home")


def test_a_file_that_is_not_sqlite_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"not a database at all " * 500)
    refused(path, "not a SQLite file", "choose another path")
    assert path.read_bytes().startswith(b"not a database")


def test_a_truncated_store_is_refused(store: Store) -> None:
    with store.write() as conn:
        for n in range(50):
            serve(conn, str(n))
    store.close()
    with store.path.open("r+b") as file:
        file.truncate(store.path.stat().st_size // 2)
    refused(store.path, "damaged", "backup")


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with sqlite3.connect(path) as conn:
        conn.execute("CREATE TABLE photos (id)")
    conn.close()
    before = path.read_bytes()
    refused(path, "not one of openclaw-rl")
    assert path.read_bytes() == before


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write everything: for the time being we are nobody."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def closed_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())  # not under pytest's own folders, which nobody else may enter
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_folder_is_refused(closed_folder: Path) -> None:
    closed_folder.chmod(0o555)
    with unprivileged():
        refused(closed_folder / "store.db", "cannot be created", "right to write the folder")


def test_a_read_only_file_is_refused(closed_folder: Path) -> None:
    path = closed_folder / "store.db"
    Store.open(path).close()
    path.chmod(0o444)
    closed_folder.chmod(0o555)
    with unprivileged():
        refused(path, "right to")


def test_a_full_disk_is_reported(store: Store) -> None:
    def fill(conn: Connection) -> None:
        pages = conn.exec_driver_sql("PRAGMA page_count").scalar_one()
        conn.exec_driver_sql(f"PRAGMA max_page_count={pages + 3}")
        for n in range(100):
            serve(conn, str(n))

    with (
        pytest.raises(StoreError, match=r"disk .* is full.*Free some space"),
        store.write() as conn,
    ):
        fill(conn)
    with store.read() as conn:
        assert events.last_seq(conn) == 0
        conn.exec_driver_sql("PRAGMA max_page_count=1000000")
    with store.write() as conn:
        serve(conn, "a")


def test_a_write_lock_that_is_never_released_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openclaw_rl.store.db.BUSY_TIMEOUT", 0.2)
    store = Store.open(tmp_path / "store.db")
    with (
        store.write(),
        pytest.raises(StoreError, match="write lock for too long"),
        store.write() as second_writer,
    ):
        serve(second_writer, "a")
    store.close()


# --- migrations --------------------------------------------------------------------------------------------------


def second(conn: sqlite3.Connection) -> None:
    run_script(conn, "ALTER TABLE turns ADD COLUMN colour TEXT; UPDATE turns SET colour = 'red'")


def failing(conn: sqlite3.Connection) -> None:
    conn.execute("ALTER TABLE turns ADD COLUMN half TEXT")
    raise RuntimeError("half way")


def columns_of(path: Path) -> set[str]:
    conn = sqlite3.connect(path)
    try:
        return {row[1] for row in conn.execute("PRAGMA table_info(turns)")}
    finally:
        conn.close()


def test_a_newer_schema_is_refused(store: Store) -> None:
    bootstrap.prepare_store(store.path, create=False, migrations=[*MIGRATIONS, second])
    refused(
        store.path,
        f"its schema is {len(MIGRATIONS) + 1}",
        f"supports up to {len(MIGRATIONS)}",
        "use the newer",
    )


def test_a_schema_number_that_does_not_fit_the_tables_is_reported_as_damage(store: Store) -> None:
    """The tables of the newest schema, with the number of each older one and with no number."""
    store.close()
    for number in (b"-3", b"x", b"", *(str(n).encode() for n in range(1, len(MIGRATIONS)))):
        with sqlite3.connect(store.path) as conn:
            conn.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (number,))
        conn.close()
        refused(store.path, "damaged", "backup")


def test_an_older_store_is_backed_up_and_migrated(store: Store) -> None:
    with store.write() as conn:
        serve(conn, "a")
    bootstrap.prepare_store(store.path, create=False, migrations=[*MIGRATIONS, second])
    backup = bootstrap.backup_path(store.path, len(MIGRATIONS))
    assert columns_of(store.path) - columns_of(backup) == {"colour"}
    assert backup.stat().st_mode & 0o777 == 0o600
    old = Store.open(backup)
    with old.read() as conn:
        assert exchanges.get(conn, "a") is not None, (
            "the backup is a whole store, what lay in the WAL included"
        )
    assert old.secret == store.secret
    old.close()
    with store.read() as conn:
        assert conn.exec_driver_sql("SELECT colour FROM turns").scalars().all() == ["red"]


def test_processes_that_open_an_older_store_together_migrate_it_once(store: Store) -> None:
    path, runs = store.path, list[str]()

    def counted(conn: sqlite3.Connection) -> None:
        runs.append("migrated")
        second(conn)

    with ThreadPoolExecutor(4) as pool:
        tasks = [
            pool.submit(
                bootstrap.prepare_store, path, create=False, migrations=[*MIGRATIONS, counted]
            )
            for _ in range(4)
        ]
    for task in tasks:
        task.result()
    assert runs == ["migrated"]
    assert "colour" in columns_of(path)
    assert "colour" not in columns_of(bootstrap.backup_path(path, len(MIGRATIONS)))


def test_a_store_that_waits_for_its_migration_can_be_written(store: Store) -> None:
    """Neither the wait for another process nor the backup holds the write lock."""
    with store.path.with_name(f"{store.path.name}.migration.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with ThreadPoolExecutor(1) as pool:
            migration = pool.submit(
                bootstrap.prepare_store, store.path, create=False, migrations=[*MIGRATIONS, second]
            )
            for number in range(20):
                with store.write() as conn:
                    serve(conn, f"written-{number}")
            fcntl.flock(file, fcntl.LOCK_UN)
            migration.result()
    assert "colour" in columns_of(store.path)


def test_a_migration_that_fails_leaves_the_old_schema(store: Store) -> None:
    with pytest.raises(RuntimeError, match="half way"):
        bootstrap.prepare_store(store.path, create=False, migrations=[*MIGRATIONS, failing])
    assert "half" not in columns_of(store.path)
    Store.open(store.path).close()


# --- several processes -------------------------------------------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
from openclaw_rl.store.db import Store
from tests.store.world import serve
store = Store.open(Path(sys.argv[1]))
for n in range(int(sys.argv[3])):
    with store.write() as conn:
        for half in "ab":
            serve(conn, f"{sys.argv[2]}-{n}-{half}")
    print(n, flush=True)
"""


def start(path: Path, name: str, times: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(times)]
    return subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, text=True)


def test_two_processes_create_and_fill_one_store(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    for process in [start(path, name, 40) for name in ("one", "two")]:
        assert process.communicate(timeout=240)[0].split()[-1] == "39"
        assert process.returncode == 0
    store = Store.open(path)
    with store.read() as conn:
        assert turns.count_by_state(conn) == {TurnState.SERVED: 160}
        numbers = (
            conn.execute(select(schema.exchanges.c.seq).order_by(schema.exchanges.c.seq))
            .scalars()
            .all()
        )
        assert list(numbers) == list(range(1, 161))
    store.close()


def test_a_killed_writer_leaves_complete_transactions(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    process = start(path, "victim", 100_000)
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    said += process.stdout.read().splitlines()
    process.wait(timeout=240)
    process.stdout.close()
    acknowledged = max(int(line) for line in said if line.strip())
    store = Store.open(path)
    with store.read() as conn:
        assert conn.exec_driver_sql("PRAGMA integrity_check").scalars().all() == ["ok"]
        assert conn.exec_driver_sql("PRAGMA foreign_key_check").all() == []
        held = set(conn.execute(select(schema.turns.c.id)).scalars())
        log = events.read_after(conn, 0, 10**6)
    pairs = len(held) // 2
    assert pairs in (acknowledged + 1, acknowledged + 2), "nothing acknowledged is lost"
    assert held == {f"victim-{n}-{half}" for n in range(pairs) for half in "ab"}, (
        "all of a transaction, or nothing"
    )
    assert len(log) == 2 * len(held)
    with store.write() as conn:
        serve(conn, "after")
    store.close()


# --- plans -------------------------------------------------------------------------------------------------------


def test_the_queries_of_the_loops_use_their_indexes(store: Store) -> None:
    """What is asked many times a second must not read the whole table."""
    with store.write() as conn:
        policies.ensure_root(conn, base="b", identity="i", at=1.0)
        asked = _watched(conn)
        turns.closed_turns(conn, 5)
        own = policy_names.owner_filter("agent", "agent:key:coder")
        training_queue.trainable_turns(
            conn, limit=5, max_uses=1, need_score=True, need_hint=True, owner=own
        )
        training_queue.replay_turns(
            conn, limit=5, max_uses=2, need_score=True, need_hint=True, owner=own
        )
        policy_names.waiting_names(conn, "agent")
        live_scores.newest_scores(conn, 0, after=0, limit=5, owner=own)
        live_scores.names_with_scores(conn, "agent", after=live_scores.newest_score(conn))
        exchanges.fail_running(conn, "x", 1.0)
        events.read_after(conn, 0, 5, ["a"])
        leases.acquire(conn, "a", "b", 1, 1)
        plans = [line for sql, values in asked for line in _plan(conn, sql, values)]
    for searched in (
        "turns_claimable (signal=? AND uses=? AND owner=?)",
        "turns_claimable (signal=? AND uses=?)",
        "turns_lost (signal=? AND owner=?)",
        "turns_freed (signal=? AND owner=?)",
        "turns_freed (signal=?)",
        "turns_owner (owner=? AND seq>?)",
    ):
        assert any(searched in line for line in plans), searched
    whole = (
        "SCAN turns",
        "SCAN exchanges",
        "SCAN bodies",
        "SCAN uses",
        "SCAN events",
        "SCAN verdicts",
    )
    bad = [line for line in plans if line.startswith(whole) and "USING" not in line]
    assert not bad
    by_state = [line for line in plans if "policies_state" in line]
    assert not by_state, "of each turn only the versions that used it are read"
    scanned = {line for line in plans if line.startswith("SCAN turns")}
    assert scanned == {"SCAN turns USING INDEX turns_closed"}, "an index of turns that wait"


def _watched(conn: Connection) -> list[tuple[str, object]]:
    asked: list[tuple[str, object]] = []

    def listen(
        _conn: object, _cursor: object, sql: str, values: object, _context: object, _many: object
    ) -> None:
        if sql.lstrip().startswith(("SELECT", "WITH")):
            asked.append((sql, values))

    event.listen(conn, "before_cursor_execute", listen)
    return asked


def _plan(conn: Connection, sql: str, values: object) -> list[str]:
    return [row[3] for row in conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values)]


def test_a_reply_belongs_to_its_exchange(store: Store) -> None:
    with store.write() as conn:
        exchanges.admit(conn, [request("a"), request("b")])
        exchanges.finish(conn, [reply(request("b")), reply(request("a"), error="mine")])
        found = exchanges.get_many(conn, ["a", "b", "c"])
    assert {i: e.reply and e.reply.error for i, e in found.items()} == {"a": "mine", "b": None}


_SELECT_META = select(schema.meta.c.key).where(schema.meta.c.key == bindparam("key")).limit(1)


def test_has_row_sees_every_commit_and_holds_no_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with Store.open(path) as store, Store.open(path) as other:
        assert store.has_row(_SELECT_META, {"key": "secret"})
        assert not store.has_row(_SELECT_META, {"key": "new"})
        with other.write() as conn:
            conn.execute(insert(schema.meta).values(key="new", value=b""))
        assert store.has_row(_SELECT_META, {"key": "new"})
        with sqlite3.connect(path, isolation_level=None) as conn:
            busy, _, _ = conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        conn.close()
        assert not busy, "a finished query keeps no part of the log"
