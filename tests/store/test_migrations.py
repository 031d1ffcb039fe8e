"""What an older openclaw-rl wrote is read on by this one."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tests.store.world import request, serve

from openclaw_rl.common import message_hash
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store import bootstrap, exchanges, migrated_reasons, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.migrations import MIGRATIONS
from openclaw_rl.store.rows import to_json


def test_a_store_of_the_previous_schema_is_migrated(tmp_path: Path) -> None:
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
        {"id": id_, "function": {"name": "look", "arguments": "{}"}}
        for id_ in ("call_1", "call_2", "call_1", None)
    ]
    reply = to_json({"role": "assistant", "content": None, "tool_calls": calls})
    conn.execute("INSERT INTO replies (seq, message, spans) VALUES (1, ?, '[]')", (reply,))
    conn.commit()
    conn.close()
    store = Store.open(path)
    with store.read() as reading:
        rows = reading.exec_driver_sql(
            "SELECT seq, call, scope FROM reply_calls ORDER BY call"
        ).all()
    assert rows == [(1, "call_1", "key"), (1, "call_2", "key")]
    store.close()


def test_reasons_of_earlier_versions_get_their_codes(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    bootstrap.prepare_store(path, create=True, migrations=MIGRATIONS[:23])
    turns_ = {
        "stale": (
            "untrainable",
            "too stale: mean |log ratio| 0.72 between version 4 that sampled it and the policy",
        ),
        "greedy": ("untrainable", "greedy sampling (temperature 0) has no sampling distribution"),
        "unscored": (
            "untrainable",
            "not scored: it was imported without the log-probabilities of its tokens",
        ),
        "alike": (
            "untrainable",
            "its group says nothing: the batch holds no other rollout of its task",
        ),
        "unknown": ("untrainable", "a text of its own"),
        "earlier": ("reason", "what was learned from it was taken back (to version 2)"),
        "promoted": ("reason", "a version that was not trained on it was promoted (version 3)"),
        "undone": ("reason", "undone by hand"),
    }
    versions = {
        1: ("rejected", "it cannot be trained: ValueError: x"),
        2: (
            "rejected",
            "the verdicts of its batch contradict what the head has learned: agreement -0.99",
        ),
        3: ("rejected", "kl is None, expected a finite number"),
        4: ("rolled_back", "it cannot be trained: says the owner"),
    }
    verdicts = {
        1: "abstained: a tie (+1: 1, -1: 1)",
        2: "abstained: no score has more than 0.5 of 3 usable votes",
    }
    with sqlite3.connect(path) as conn:
        for seq, (turn, (column, words)) in enumerate(turns_.items(), start=1):
            conn.execute(
                "INSERT INTO exchanges (seq, id, scope, agent, user, session_done, dialect, capture, status, version, "
                "identity, admitted_at) VALUES (?, ?, 'key', '', '', 0, 'chat', 'full', 'done', 0, 'i', 1.0)",
                (seq, turn),
            )
            cause = "taken back" if column == "reason" else None
            conn.execute(
                "INSERT INTO turns (seq, id, scope, session, kind, state, relation, revision, signal, uses, cause, "
                f"{column}) VALUES (?, ?, 'key', 's', 'main', 'dropped', 'fresh', 0, 0, 0, ?, ?)",
                (seq, turn, cause, words),
            )
        for version, (state, words) in versions.items():
            conn.execute(
                "INSERT INTO policies (version, state, digest, base, identity, memory, metrics, created_at, reason) "
                "VALUES (?, ?, '', 'b', 'i', '{}', '{}', 1.0, ?)",
                (version, state, words),
            )
        for revision, words in verdicts.items():
            conn.execute(
                "INSERT INTO verdicts (turn, revision, judge, score, votes, hints, explicit, reason, at) "
                "VALUES ('stale', ?, 'j', NULL, '[]', '[]', 0, ?, 1.0)",
                (revision, words),
            )
    conn.close()
    with Store.open(path) as store, store.read() as reading:
        rows = [turns.get(reading, turn) for turn in turns_]
        assert [row and (row.untrainable_code or row.cause) for row in rows] == [
            ReasonCode.TOO_STALE,
            ReasonCode.GREEDY,
            ReasonCode.UNSCORED,
            ReasonCode.EQUAL_REWARDS,
            ReasonCode.STATED,
            ReasonCode.ROLLED_BACK,
            ReasonCode.PROMOTED,
            ReasonCode.TAKEN_BACK,
        ]
        assert [policy.reason_code for policy in policies.get_many(reading, list(versions))] == [
            ReasonCode.CANNOT_TRAIN,
            ReasonCode.CONTRADICTION,
            ReasonCode.NOT_FINITE,
            ReasonCode.ROLLED_BACK,
        ]
        codes = (
            reading.exec_driver_sql("SELECT reason_code FROM verdicts ORDER BY revision")
            .scalars()
            .all()
        )
        assert codes == [ReasonCode.TIE, ReasonCode.NO_MAJORITY]


def test_unlinked_turns_of_earlier_versions_get_their_codes(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    bootstrap.prepare_store(path, create=True, migrations=MIGRATIONS[:24])
    opening = "no reply in its history (2) could be linked: "
    other = "the client sends another text in place of the reply to the same history"
    short = "a reply under 24 characters is only matched in an unchanged history"
    codes = {
        f"{opening}{other}; {short}": ReasonCode.SHORT_TEXT,
        f"{opening}{other}": ReasonCode.OTHER_TEXT,
        "the turn before the summary in place of its history is not known": ReasonCode.UNKNOWN_TURN,
        "words of its own": ReasonCode.STATED,
        None: None,
    }
    with sqlite3.connect(path) as conn:
        for seq, detail in enumerate(codes, start=1):
            conn.execute(
                "INSERT INTO exchanges (seq, id, scope, agent, user, session_done, dialect, capture, status, version, "
                "identity, admitted_at) VALUES (?, ?, 'key', '', '', 0, 'chat', 'full', 'done', 0, 'i', 1.0)",
                (seq, str(seq)),
            )
            conn.execute(
                "INSERT INTO turns (seq, id, scope, session, kind, state, relation, revision, signal, uses, unlinked) "
                "VALUES (?, ?, 'key', 's', 'main', 'served', 'fresh', 0, 0, 0, ?)",
                (seq, str(seq), detail),
            )
    conn.close()
    with Store.open(path) as store, store.read() as reading:
        rows = [turns.get(reading, str(seq)) for seq in range(1, len(codes) + 1)]
        assert [row and row.unlinked_code for row in rows] == list(codes.values())


def test_each_code_of_the_migration_is_one_of_the_enum() -> None:
    tables = (
        migrated_reasons.UNTRAINABLE,
        migrated_reasons.POLICY,
        migrated_reasons.VERDICT,
        migrated_reasons.DROPPED,
        migrated_reasons.UNLINKED,
    )
    assert {code for table in tables for _, code in table} <= {code.value for code in ReasonCode}


def test_policies_of_agents_and_users_get_their_key(tmp_path: Path) -> None:
    """The key of most of their exchanges, of which some are of an episode."""
    path = tmp_path / "store.db"
    place = next(n for n, step in enumerate(MIGRATIONS) if "28_policy_keys" in str(step))
    bootstrap.prepare_store(path, create=True, migrations=MIGRATIONS[:place])
    conn = sqlite3.connect(path)
    conn.execute(
        "INSERT INTO episodes (id, task, group_id, split, agent, started_at, scope, expires_at) "
        "VALUES ('e', 't', 'g', 'train', 'main:a', 1.0, 'k1', 2.0)"
    )
    columns = "id, scope, agent, user, episode, session_done, dialect, capture, status, version, identity, admitted_at"
    for number, (scope, agent, user, episode) in enumerate(
        [
            ("k1", "main:a", "", None),
            ("of-episode", "main:a", "", "e"),
            ("k2", "main:a", "", None),
            ("k2", "", "ann", None),
        ]
    ):
        conn.execute(
            f"INSERT INTO exchanges ({columns}) VALUES (?, ?, ?, ?, ?, 0, 'chat', 'full', 'done', 0, 'i', 1.0)",
            (f"x{number}", scope, agent, user, episode),
        )
    policy = "version, state, digest, base, identity, memory, metrics, created_at, name"
    for version, name in enumerate(["default", "agent:main:a", "user:ann", "user:gone", "key:k1"]):
        conn.execute(
            f"INSERT INTO policies ({policy}) VALUES (?, 'live', '', 'b', 'i', x'', x'', 1.0, ?)",
            (version, name),
        )
        conn.execute("INSERT INTO heads (name, version) VALUES (?, ?)", (name, version))
    conn.execute("INSERT INTO meta (key, value) VALUES ('canary:user:ann', x'7b7d')")
    conn.commit()
    conn.close()
    store = Store.open(path)
    names = ["default", "agent:k1:main:a", "user:k2:ann", "user::gone", "key:k1"]
    with store.read() as reading:
        found = reading.exec_driver_sql("SELECT name FROM policies ORDER BY version").scalars()
        assert list(found) == names
        heads = reading.exec_driver_sql("SELECT name FROM heads ORDER BY version").scalars()
        assert list(heads) == names
        marks = reading.exec_driver_sql("SELECT key FROM meta WHERE key LIKE 'canary:%'").scalars()
        assert list(marks) == ["canary:user:k2:ann"]
    store.close()
