"""A writer with a connection of its own: what it notices, and what an error leaves."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection
from tests.store.world import serve

from openclaw_rl.store import events
from openclaw_rl.store.db import Store


def _append(conn: Connection) -> None:
    events.append(conn, "kind", "ref", {}, 1.0)


def test_commits_of_others_are_noticed_and_its_own_are_not(store: Store) -> None:
    other = Store.open(store.path)
    writer = store.open_writer()
    assert writer.others_have_changed(), "the first look is always worth while"
    with writer.write() as conn:
        _append(conn)
    assert not writer.others_have_changed()
    for committer in (other, store):
        with committer.write() as conn:
            _append(conn)
        assert writer.others_have_changed()
        assert not writer.others_have_changed()
    writer.close()
    other.close()


def test_a_commit_of_others_just_before_its_own_is_noticed(store: Store) -> None:
    writer = store.open_writer()
    assert writer.others_have_changed()
    with store.write() as conn:
        _append(conn)
    with writer.write() as conn:
        _append(conn)
    assert writer.others_have_changed()
    writer.close()


def test_an_error_rolls_back_and_the_writer_goes_on(store: Store) -> None:
    writer = store.open_writer()

    def half_way(conn: Connection) -> None:
        serve(conn, "lost")
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError), writer.write() as conn:
        half_way(conn)
    with writer.write() as conn:
        serve(conn, "stored")
    with store.read() as conn:
        ids = conn.exec_driver_sql("SELECT id FROM exchanges").scalars().all()
    assert ids == ["stored"]
    writer.close()
