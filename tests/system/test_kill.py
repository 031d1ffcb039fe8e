"""kill -9 of engine, gateway, judge and trainer in turn, at random moments, under load."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import pytest
from sqlalchemy import select
from tests.system.load import Ledger, crowd

from openclaw_rl.store import exchanges, heartbeats, policies
from openclaw_rl.store.db import Store
from openclaw_rl.store.schema import uses, verdicts
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config
from openclaw_rl.types import ExchangeStatus

VICTIMS = ("engine", "gateway", "judge", "train")
KILLS = 40


def pid_of(store: Store, room: str) -> int | None:
    with store.read() as conn:
        return next((int(b.pid) for b in heartbeats.read_heartbeats(conn) if b.name == room), None)


def alive(pid: int | None) -> bool:
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def new_pid(store: Store, room: str, old: int | None, within: float) -> int:
    end = time.monotonic() + within
    while time.monotonic() < end:
        pid = await asyncio.to_thread(pid_of, store, room)
        if pid != old and alive(pid):
            assert pid is not None
            return pid
        await asyncio.sleep(0.05)
    raise AssertionError(f"{room} did not come back within {within} s")


def verdict_ids(store: Store) -> set[tuple[str, int, str]]:
    with store.read() as conn:
        rows = conn.execute(select(verdicts.c.turn, verdicts.c.revision, verdicts.c.judge)).all()
    return {(turn, revision, judge) for turn, revision, judge in rows}


@pytest.mark.timeout(600)
def test_forty_kills_lose_nothing(tmp_path: Path) -> None:
    rng = random.Random(20261120)
    settings = {"run.max_crashes": 30, "run.max_restart_delay": 1.0, "run.log_level": "warning"}
    settings |= {"train.safety.lease_ttl": 3.0}
    with SubprocessSystem(scratch_config(tmp_path / "home", settings)) as system:
        store = Store.open(system.config.store_path, create=False)
        ledger, committed = asyncio.run(_siege(system, store, rng))
        head = system.wait_until_settled(timeout=90)
        assert head > 0, "nothing was learned under fire"
        _check_replies(store, ledger)
        assert committed <= verdict_ids(store), "a committed verdict was lost"
        _check_uses(store, head)
        store.close()


async def _siege(
    system: SubprocessSystem, store: Store, rng: random.Random
) -> tuple[Ledger, set[tuple[str, int, str]]]:
    ledger, committed = Ledger(), set[tuple[str, int, str]]()
    async with crowd(system, 3, ledger):
        await asyncio.sleep(3)
        for number in range(KILLS):
            room = VICTIMS[number % len(VICTIMS)]
            await asyncio.sleep(rng.uniform(0.1, 2.0))
            old = await asyncio.to_thread(pid_of, store, room)
            committed |= await asyncio.to_thread(verdict_ids, store)
            if old is not None and alive(old):
                os.kill(old, signal.SIGKILL)
                await new_pid(store, room, old, 60)
        # It is back at work by itself: every user gets replies again, and a new version comes.
        before, seen = dict(ledger.finished), max(ledger.versions, default=0)
        end = time.monotonic() + 60
        while time.monotonic() < end and not (len(ledger.finished) >= len(before) + 30 and max(ledger.versions) > seen):
            await asyncio.sleep(0.2)
    assert len(ledger.finished) >= len(before) + 30, "replies did not come back"
    assert max(ledger.versions) > seen, "learning did not come back"
    return ledger, committed


def _check_replies(store: Store, ledger: Ledger) -> None:
    assert len(ledger.finished) > 100
    with store.read() as conn:
        for id_, text in ledger.finished.items():
            exchange = exchanges.get(conn, id_)
            assert exchange is not None, f"{id_}: its finish was seen, but it is not in the store"
            assert exchange.reply is not None
            assert exchange.reply.status is ExchangeStatus.DONE
            assert (exchange.reply.message.get("content") or "") == text


def _check_uses(store: Store, head: int) -> None:
    with store.read() as conn:
        rows = conn.execute(select(uses.c.policy, uses.c.turn)).all()
        lineages = [set(policies.lineage(conn, p.version)) for p in policies.list_all(conn)]
        head_lineage = set(policies.lineage(conn, head))
    for lineage in [*lineages, head_lineage]:
        used = [turn for policy, turn in rows if policy in lineage]
        assert len(used) == len(set(used)), "a turn was used twice in one lineage"
