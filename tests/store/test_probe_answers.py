"""Answers to the probes of the gate are kept with the version, and erased with the person's turn."""

from __future__ import annotations

from dataclasses import replace

from tests.store.world import policy, serve

from openclaw_rl.store import leases
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, probe_answers
from openclaw_rl.store.lineage.probe_answers import ProbeAnswer

ANSWER = ProbeAnswer(
    version=1,
    probe="sum",
    head=0,
    question="1 plus 1?",
    head_answer="2",
    candidate_answer="3",
    verdict=-1.0,
)


def test_probe_answers_are_erased_with_their_turn(store: Store) -> None:
    with store.write() as conn:
        policies.ensure_root(conn, base="base", identity="i", at=1.0)
        lease = leases.acquire(conn, "trainer", holder="t", now=1.0, ttl=60.0)
        assert lease is not None
        policies.publish(conn, lease, policy(1, 0), [], 2.0)
        serve(conn, "a")
        own = replace(
            ANSWER, probe="turn a", turn="a", candidate_answer="2", verdict=0.0, reason="equal"
        )
        probe_answers.record_answers(conn, [ANSWER, own])
        probe_answers.record_answers(conn, [replace(ANSWER, verdict=-0.5)])
    with store.read() as conn:
        assert probe_answers.answers_of_version(conn, 1) == [replace(ANSWER, verdict=-0.5), own]
        assert [answer.probe for answer in probe_answers.changed_answers(conn, 1)] == ["sum"]
        assert not probe_answers.answers_of_version(conn, 0)
    with store.write() as conn:
        conn.exec_driver_sql("DELETE FROM turns WHERE id = 'a'")
    with store.read() as conn:
        assert [answer.probe for answer in probe_answers.answers_of_version(conn, 1)] == ["sum"]
