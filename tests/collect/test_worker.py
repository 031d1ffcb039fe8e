"""The loop as a process runs it: it follows the store, says that it lives, stops at once, and survives kill -9."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.collect.test_recorded import check, interleaved
from tests.collect.world import Ask, Say, Stored

from openclaw_rl.collect import worker
from openclaw_rl.common.steady_clock import GuardedWallClock
from openclaw_rl.errors import StoreError
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.store import heartbeats, turns
from openclaw_rl.types import TurnState

HERE = Path(__file__).parent.parent.parent
WITHIN = 240.0  # seconds


def config_for(home: Path, **flat: object) -> Config:
    return from_flat({"home": str(home), "collect.poll": 0.01} | flat)


async def until(world: Stored, name: str, state: TurnState) -> None:
    end = time.monotonic() + WITHIN
    while world.state(name)[0] is not state:
        assert time.monotonic() < end, f"{name} is still {world.state(name)}"
        await asyncio.sleep(0.01)


def test_the_collector_follows_events_of_other_processes(tmp_path: Path) -> None:
    async def main() -> None:
        world = Stored(tmp_path / "store.db")
        stop = asyncio.Event()
        task = asyncio.create_task(worker.run(config_for(tmp_path), stop=stop))
        world.now = time.time()
        world.play(
            Ask(name="1", history=["u Hello"], reply="Good morning to you as well!"), collect=False
        )
        world.play(
            Ask(name="2", history=["u Hello", "a Good morning to you as well!", "u Nice."]),
            collect=False,
        )
        await until(world, "1", TurnState.CLOSED)
        world.play(Say(name="1", score=1), collect=False)
        end = time.monotonic() + WITHIN
        while True:
            with world.store.read() as conn:
                reaction, beats = (
                    turns.current_reaction(conn, "1"),
                    heartbeats.read_heartbeats(conn),
                )
            if reaction is not None and reaction.feedback:
                break
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        assert [b.name for b in beats] == ["collect"]
        stop.set()
        await asyncio.wait_for(task, WITHIN)
        world.store.close()

    asyncio.run(main())


def test_turns_time_out_while_nothing_happens(tmp_path: Path) -> None:
    async def main() -> None:
        world = Stored(tmp_path / "store.db")
        world.now = time.time() - 10
        world.play(Ask(name="1", history=["u Hello"], reply="Good morning!"), collect=False)
        stop = asyncio.Event()
        task = asyncio.create_task(
            worker.run(config_for(tmp_path, **{"collect.session_timeout": 0.2}), stop=stop)
        )
        await until(world, "1", TurnState.DROPPED)
        with world.store.read() as conn:
            turn = turns.get(conn, "1")
        assert turn is not None
        assert turn.reason == "no reaction within 0.2 s"
        stop.set()
        await asyncio.wait_for(task, WITHIN)
        world.store.close()

    asyncio.run(main())


def test_a_loop_that_cannot_continue_raises(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"garbage " * 1000)
    with pytest.raises(StoreError):
        asyncio.run(worker.run(config_for(tmp_path), stop=asyncio.Event()))


def test_two_collectors_on_one_home_link_once(tmp_path: Path) -> None:
    world = Stored(tmp_path / "store.db")
    for number in range(20):
        world.play(
            Ask(name=f"{number}", history=[f"u Hello {number}"], reply="Good morning!"),
            collect=False,
        )
        history = [f"u Hello {number}", "a Good morning!", "u Nice."]
        world.play(Ask(name=f"{number}, answered", history=history), collect=False)
    both = [world.collector, worker.Collector(world.store, config_for(tmp_path).collect)]

    def link_all(collector: worker.Collector) -> None:
        while collector.step(1):
            pass

    with ThreadPoolExecutor() as threads:
        list(threads.map(link_all, both))
    assert sum(collector.linked_count for collector in both) == 40
    assert sum(collector.reaction_count for collector in both) == 20
    assert all(
        world.seen(f"{n}, answered").answers == {f"{n}": ("exact", ("Nice.",))} for n in range(20)
    )
    world.store.close()


COLLECT = """
import sys
from pathlib import Path
from openclaw_rl.collect.worker import Collector
from openclaw_rl.settings.load import CollectConfig
from openclaw_rl.store.db import Store
collector = Collector(Store.open(Path(sys.argv[1])), CollectConfig())
print("ready", flush=True)
while collector.step(3):
    print(collector.linked_count, flush=True)
"""


def test_repeated_kills_do_not_change_the_result(tmp_path: Path) -> None:
    """Each event takes effect exactly once, wherever the process is cut off."""
    path = tmp_path / "killed.db"
    people = ("ann", "bob")
    world = Stored(path)
    for step in interleaved(people, random.Random(7)):
        world.play(step, collect=False)
    world.store.close()
    shutil.copy(path, tmp_path / "whole.db")
    for lines in (2, 7):
        command = [sys.executable, "-c", COLLECT, str(path)]
        with subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert all(process.stdout.readline() for _ in range(lines))
            process.send_signal(signal.SIGKILL)
            assert process.wait(timeout=WITHIN) == -signal.SIGKILL
    killed, whole = Stored(path), Stored(tmp_path / "whole.db")
    killed.collect()
    whole.collect()
    assert killed.snapshot() == whole.snapshot()
    check(killed, people)
    killed.store.close()
    whole.store.close()


def test_a_clock_that_jumps_ahead_drops_no_turn(tmp_path: Path) -> None:
    """Three hours ahead for a moment: the turn still waits for its reaction, and times out when it should."""
    world = Stored(tmp_path / "store.db")
    config = config_for(tmp_path, **{"collect.session_timeout": 1.5}).collect
    world.now = time.time()
    world.play(
        Ask(name="1", history=["u Hello"], reply="Good morning to you as well!"), collect=False
    )
    jump = [0.0]
    collector = worker.Collector(
        world.store, config, clock=GuardedWallClock(1.5, wall=lambda: time.time() + jump[0])
    )
    jump[0] = 3 * 3600.0
    collector.run_once()
    assert world.state("1")[0] is TurnState.SERVED
    end = time.monotonic() + WITHIN
    while world.state("1")[0] is TurnState.SERVED:
        assert time.monotonic() < end
        collector.run_once()
        time.sleep(0.1)
    world.store.close()
