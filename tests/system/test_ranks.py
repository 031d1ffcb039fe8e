"""A whole system whose trainer is two processes: it learns, loses one of them by kill -9, and goes on from the head."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from benchmarks.faults.client_log import ClientLog
from benchmarks.faults.clients import crowd
from benchmarks.faults.live_system import read_pid

from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

pytestmark = pytest.mark.system

WITHIN = 600.0  # seconds; a quiet machine needs a tenth


@pytest.mark.timeout(900)
def test_learning_goes_on_after_a_rank_was_killed(tmp_path: Path) -> None:
    settings = {
        "train.ranks": 2,
        "train.launch.timeout": 60.0,
        "train.safety.lease_ttl": 3.0,
        "run.max_crashes": 30,
    }
    with SubprocessSystem(scratch_config(tmp_path / "home", settings)) as system:
        store = Store.open(system.config.store_path, create=False)
        try:
            asyncio.run(_learn_through_a_death(system, store))
            with store.read() as conn:
                lineage = policies.lineage(conn, policies.head(conn).version)
                used = [
                    use.turn
                    for version in lineage
                    for use in policies.uses_of_version(conn, version)
                ]
        finally:
            store.close()
    assert used
    assert len(used) == len(set(used)), "a turn was used twice"
    log = (system.config.logs_dir / "up.log").read_text()
    assert "a rank is gone (process 0 " in log
    assert "train ended (exit code 1): crash 1, it starts again in 1 s. Reason: " in log


async def _learn_through_a_death(system: SubprocessSystem, store: Store) -> None:
    async with crowd(system, 2, ClientLog()):
        before = await _version(store, 2)
        room = read_pid(store, "train")
        assert room is not None
        children = _children(room)
        assert len(children) == 2, "two ranks"
        os.kill(children[1], signal.SIGKILL)
        await _version(store, before + 2)
    assert read_pid(store, "train") != room
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def _version(store: Store, least: int) -> int:
    """Wait until there is this version, or a later one."""
    end = time.monotonic() + WITHIN
    while time.monotonic() < end:
        with store.read() as conn:
            head = policies.head(conn).version
        if head >= least:
            return head
        await asyncio.sleep(0.2)
    raise AssertionError(f"no version {least} within {WITHIN:g} s, the head is {head}")


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return sorted(
        int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()
    )
