"""A damaged row is left out with its reason in every stage that reads it, and nothing else stops."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.judge.world import World
from tests.store.world import KEY, NOTHING, WORDS, reply, request

from openclaw_rl.collect.worker import Collector
from openclaw_rl.common import message_hash
from openclaw_rl.errors import DamagedRow
from openclaw_rl.judge import worker as judge_worker
from openclaw_rl.serve.prompt_recovery import PromptRecovery
from openclaw_rl.settings.load import CollectConfig, from_flat
from openclaw_rl.status import inspect, report
from openclaw_rl.store import events, exchanges, sessions, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, training_queue
from openclaw_rl.trajectories.operations import export_sessions
from openclaw_rl.types import TurnState, Verdict

DAMAGE = {
    "log-probabilities": "UPDATE replies SET logprobs = substr(logprobs, 1, length(logprobs) - 4) WHERE seq = 2",
    "half a number": "UPDATE replies SET logprobs = substr(logprobs, 1, length(logprobs) - 1) WHERE seq = 2",
    "reply": "UPDATE replies SET message = '{\"role\"' WHERE seq = 2",
    "reply of another type": "UPDATE replies SET message = '[1]' WHERE seq = 2",
    "spans": "UPDATE replies SET spans = 'x' WHERE seq = 2",
    "messages": "UPDATE bodies SET messages = '[3]' WHERE seq = 2",
    "marks": "UPDATE bodies SET marks = x'00' WHERE seq = 2",
    "sampling": "UPDATE bodies SET sampling = '{' WHERE seq = 2",
    "nesting": f"UPDATE bodies SET tools = '{'[' * 100_000}' WHERE seq = 2",
}
every_damage = pytest.mark.parametrize("sql", DAMAGE.values(), ids=DAMAGE)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    config = from_flat({"home": str(tmp_path)})
    with Store.open(config.store_path) as store:
        with store.write() as conn:
            policies.ensure_root(conn, base="b", identity="i", at=1.0)
        yield World(config, store)


def damage(store: Store, sql: str) -> None:
    with store.write() as conn:
        assert conn.exec_driver_sql(sql).rowcount == 1


def judged(world: World, *ids: str) -> None:
    for id_ in ids:
        world.close(id_, "Thanks.")
    with world.store.write() as conn:
        for id_ in ids:
            turns.add_verdict(
                conn,
                Verdict(turn=id_, revision=1, judge="j", score=1, hints=("Be brief.",), at=4.0),
            )


def state_of(store: Store, id_: str) -> tuple[TurnState, str]:
    with store.read() as conn:
        turn = turns.get(conn, id_)
    assert turn is not None
    return turn.state, turn.untrainable or ""


@every_damage
def test_collect_links_all_other_requests(world: World, sql: str) -> None:
    with world.store.write() as conn:
        for id_ in ("a", "b", "c"):
            exchanges.admit(conn, [request(id_)])
            exchanges.finish(conn, [reply(request(id_))])
        before = [
            *request("a").messages,
            {"role": "assistant", "content": WORDS},
            {"role": "user", "content": "Thanks."},
        ]
        later = request(
            "d",
            messages=before,
            marks=message_hash.mark_messages(before, KEY, NOTHING),
            admitted_at=12.0,
        )
        exchanges.admit(conn, [later])
    damage(world.store, sql)
    collector = Collector(world.store, CollectConfig())
    while collector.step():
        pass
    state, why = state_of(world.store, "b")
    assert (state, why[:8]) == (TurnState.DROPPED, "damaged:")
    assert state_of(world.store, "a") == (TurnState.CLOSED, "")
    assert state_of(world.store, "c") == (TurnState.SERVED, "")


@every_damage
def test_the_judge_judges_all_other_turns(world: World, sql: str) -> None:
    for id_ in ("a", "b", "c"):
        world.close(id_, "Thanks.")
    damage(world.store, sql)
    _judge_until_done(world)
    assert [state_of(world.store, id_)[0] for id_ in ("a", "b", "c")] == [
        TurnState.JUDGED,
        TurnState.DROPPED,
        TurnState.JUDGED,
    ]
    assert state_of(world.store, "b")[1].startswith("damaged: its re")


def test_the_judge_skips_a_damaged_reaction(world: World) -> None:
    for id_ in ("a", "b"):
        world.close(id_, "Thanks.")
    damage(world.store, "UPDATE reactions SET messages = '{' WHERE turn = 'b'")
    _judge_until_done(world)
    assert state_of(world.store, "a") == (TurnState.JUDGED, "")
    assert state_of(world.store, "b")[1].startswith("damaged: its reaction cannot be read")


def _judge_until_done(world: World) -> None:
    async def main() -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(judge_worker.run(world.config, stop=stop))
        while not task.done():
            with world.store.read() as conn:
                if TurnState.CLOSED not in turns.count_by_state(conn):
                    stop.set()
            await asyncio.wait({task}, timeout=0.01)
        task.result()

    asyncio.run(asyncio.wait_for(main(), 300))


@pytest.mark.parametrize(
    "sql",
    [
        *DAMAGE.values(),
        "UPDATE verdicts SET hints = '{' WHERE turn = 'b'",
        "DELETE FROM verdicts WHERE turn = 'b'",
    ],
    ids=[*DAMAGE, "verdict", "no verdict"],
)
def test_the_training_queue_names_the_damaged_turn(world: World, sql: str) -> None:
    judged(world, "a", "b", "c")
    damage(world.store, sql)
    with world.store.read() as conn, pytest.raises(DamagedRow, match=r"^damaged: it") as caught:
        training_queue.trainable_turns(conn, limit=9, max_uses=1, need_score=True, need_hint=True)
    assert caught.value.turn == "b"


@every_damage
def test_an_export_skips_the_damaged_turn(
    world: World,
    sql: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    judged(world, "a", "b", "c")
    damage(world.store, sql)
    export_sessions(
        world.config, str(tmp_path / "out.jsonl"), names=(), since=None, form="sessions"
    )
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(turn["id"] for one in found for turn in one["turns"]) == ["a", "c"]
    assert "b is left out: damaged: its re" in caplog.text


@every_damage
def test_status_and_inspect_show_the_damaged_turn(
    world: World, sql: str, capsys: pytest.CaptureFixture[str]
) -> None:
    judged(world, "a", "b")
    damage(world.store, sql)
    report.show_status(world.config, as_json=False)
    inspect.show_sessions(world.config, 9, as_json=False)
    inspect.show_turn(world.config, "b", as_json=False)
    assert "damaged: its re" in capsys.readouterr().out.replace("\n", " ")


@every_damage
def test_a_prompt_is_built_without_damaged_token_ids(world: World, sql: str) -> None:
    with world.store.write() as conn:
        for id_ in ("a", "b"):
            exchanges.admit(conn, [request(id_)])
            exchanges.finish(conn, [reply(request(id_))])
        chains = [exchanges.get_many(conn, [id_])[id_].reply.mark.chain for id_ in ("a", "b")]  # type: ignore[union-attr]
    damage(world.store, sql)
    recovery = PromptRecovery(world.store, identity="i", stop_token_ids=[7])
    assert recovery.find_replies("key", [chains[1]]) == {}


def test_events_and_versions_with_damaged_data_do_not_stop_their_readers(world: World) -> None:
    world.close("a", "Thanks.")
    world.give("a", score=1)
    with world.store.write() as conn:
        conn.exec_driver_sql("UPDATE events SET data = '{' WHERE kind = 'feedback.given'")
        conn.exec_driver_sql("UPDATE policies SET memory = '{', metrics = '3'")
    collector = Collector(world.store, CollectConfig())
    while collector.step():
        pass
    with world.store.read() as conn:
        assert events.read_cursor(conn, "collect") > 0
        assert (policies.head(conn).memory, policies.head(conn).metrics) == ({}, {})
        assert list(sessions.iter_sessions(conn))
