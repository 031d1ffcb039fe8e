"""What an older openclaw-rl wrote is read on by this one."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tests.store.world import request, serve

from openclaw_rl.common import message_hash
from openclaw_rl.store import bootstrap, exchanges
from openclaw_rl.store.db import Store
from openclaw_rl.store.migrations import MIGRATIONS
from openclaw_rl.store.rows import to_json


def test_a_store_of_the_schema_before_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    bootstrap.prepare_store(path, create=True, migrations=MIGRATIONS[:2])
    conn = sqlite3.connect(path)
    body = (message_hash.pack_marks(request("a").marks), to_json(request("a").sampling))
    conn.execute(
        "INSERT INTO exchanges (seq, id, scope, agent, user, session_done, dialect, capture, status, version, "
        "identity, admitted_at) VALUES (1, 'a', 'key', '', '', 0, 'chat', 'full', 'running', 0, 'i', 1.0)"
    )
    conn.execute("INSERT INTO bodies (seq, marks, sampling) VALUES (1, ?, ?)", body)
    conn.commit()
    conn.close()
    store = Store.open(path)
    with store.read() as reading:
        found = exchanges.get(reading, "a")
    assert found is not None
    assert (found.request.marks, found.request.previous) == (request("a").marks, None)
    with store.write() as writing:
        serve(writing, "b")
    store.close()


def test_tool_calls_of_earlier_replies_are_found_by_their_ids(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    bootstrap.prepare_store(path, create=True, migrations=MIGRATIONS[:5])
    conn = sqlite3.connect(path)
    conn.execute(
        "INSERT INTO exchanges (seq, id, scope, agent, user, session_done, dialect, capture, status, version, "
        "identity, admitted_at) VALUES (1, 'a', 'key', '', '', 0, 'chat', 'full', 'done', 0, 'i', 1.0)"
    )
    calls = [
        {"id": id_, "function": {"name": "look", "arguments": "{}"}} for id_ in ("call_1", "call_2", "call_1", None)
    ]
    reply = to_json({"role": "assistant", "content": None, "tool_calls": calls})
    conn.execute("INSERT INTO replies (seq, message, spans) VALUES (1, ?, '[]')", (reply,))
    conn.commit()
    conn.close()
    store = Store.open(path)
    with store.read() as reading:
        rows = reading.exec_driver_sql("SELECT seq, call, scope FROM reply_calls ORDER BY call").all()
    assert rows == [(1, "call_1", "key"), (1, "call_2", "key")]
    store.close()
