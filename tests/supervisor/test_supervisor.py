"""The supervisor and rooms that hang: they live, and do nothing any more."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from openclaw_rl.doctor import pipeline
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.heartbeat_monitor import HeartbeatMonitor
from openclaw_rl.supervisor.supervisor import Supervisor, prepare_home

WITHIN = 60.0  # seconds


def silence(*looks: tuple[float | None, float], own: bool = True) -> float:
    pulse = HeartbeatMonitor(hang=120, start=1000)
    for beat, now in looks:
        pulse.record_check(beat, now, own=own)
    return pulse.silent_seconds


def test_silence_is_what_the_supervisor_saw_of_it() -> None:
    assert silence((1.0, 10), (2.0, 11), (2.0, 12), (2.0, 13)) == 2
    assert silence((1.0, 10), (2.0, 11), (2.0, 12), (3.0, 13)) == 0


def test_a_room_that_starts_may_take_its_time() -> None:
    pulse = HeartbeatMonitor(hang=120, start=1000)
    starting = [(None, float(n)) for n in range(500)]
    loading = [(1.0, float(n)) for n in range(500, 1000)]
    assert not any(pulse.record_check(*each) for each in [*starting, *loading])
    assert silence(*starting, *loading, (2.0, 1000), (2.0, 1001)) == 1


@pytest.mark.parametrize("beats", [[None], [1.0], [None, 1.0]])
def test_a_room_that_hangs_while_it_starts_is_found(beats: list[float | None]) -> None:
    pulse = HeartbeatMonitor(hang=120, start=1000)
    for n, beat in enumerate(beats):
        assert not pulse.record_check(beat, float(n))
    last = len(beats) - 1
    assert [n for n in range(last + 1, last + 1003) if pulse.record_check(beats[-1], float(n))] == [
        last + n for n in (1000, 1001, 1002)
    ]
    assert pulse.silence_limit == 1000


def test_past_its_start_a_room_has_less_time() -> None:
    pulse = HeartbeatMonitor(hang=120, start=1000)
    assert not any(pulse.record_check(beat, now) for beat, now in ((1.0, 10), (2.0, 11)))
    assert [n for n in range(12, 133) if pulse.record_check(2.0, float(n))] == [131, 132]


def test_a_machine_that_slept_has_heard_nothing_wrong() -> None:
    assert silence((1.0, 10), (2.0, 11), (2.0, 5000), (2.0, 5001)) == 3


def test_a_clock_that_was_set_back_is_no_silence() -> None:
    assert silence((100.0, 10), (101.0, 11), (3.0, 12), (4.0, 13)) == 0


def test_another_process_under_the_same_name_is_no_silence() -> None:
    """Two trainers on one home: each writes over the other's sign of life."""
    pulse = HeartbeatMonitor(hang=120, start=1000)
    assert not any(pulse.record_check(beat, beat, own=False) for beat in map(float, range(2000)))
    for own in (True, False):
        assert not pulse.record_check(5000.0 + own, 2001.0, own=own)
    assert not any(pulse.record_check(beat, beat, own=False) for beat in map(float, range(6000, 8000)))


def test_what_an_earlier_process_left_is_no_sign_of_life() -> None:
    pulse = HeartbeatMonitor(hang=120, start=1000)
    assert [n for n in range(1002) if pulse.record_check(7.0, float(n), own=False)] == [1000, 1001]


async def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + WITHIN
    while not what():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


def beating(store: Store, pid: int | None, since: float) -> bool:
    with store.read() as conn:
        return any(b.name == "collect" and b.pid == pid and b.at > since for b in heartbeats.read_heartbeats(conn))


def test_a_room_that_hangs_before_its_first_sign_of_life_is_started_again(tmp_path: Path) -> None:
    config = from_flat(
        {"home": str(tmp_path), "run.heartbeat_timeout": 60.0, "run.startup_timeout": 15.0, "run.log_level": "error"}
    )
    prepare_home(config)

    async def main() -> None:
        stop = asyncio.Event()
        supervisor = Supervisor(config, ["collect"], echo=False)
        running = asyncio.create_task(supervisor.run(stop))
        await until(lambda: supervisor.worker_pid("collect") is not None)
        first = supervisor.worker_pid("collect")
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        store = Store.open(config.store_path)
        await until(lambda: supervisor.worker_pid("collect") not in (None, first))
        assert supervisor.health_note() == "degraded: collect crashed 1x (no heartbeat for 15 s)"
        await until(lambda: beating(store, supervisor.worker_pid("collect"), 0.0))
        store.close()
        stop.set()
        await asyncio.wait_for(running, WITHIN)

    asyncio.run(main())


def test_a_room_that_hangs_is_started_again(tmp_path: Path) -> None:
    config = from_flat({"home": str(tmp_path), "run.heartbeat_timeout": 4.0, "run.log_level": "error"})
    prepare_home(config)

    async def main() -> None:
        stop = asyncio.Event()
        supervisor = Supervisor(config, ["collect"], echo=False)
        running = asyncio.create_task(supervisor.run(stop))
        store = Store.open(config.store_path)
        await until(lambda: beating(store, supervisor.worker_pid("collect"), 0.0))
        first = supervisor.worker_pid("collect")
        assert first is not None
        began = time.time()
        await until(lambda: beating(store, first, began + 1.5))  # it is past its start
        os.kill(first, signal.SIGSTOP)
        await until(lambda: supervisor.worker_pid("collect") not in (None, first))
        assert supervisor.health_note() == "degraded: collect crashed 1x (no heartbeat for 4 s)"
        await until(lambda: beating(store, supervisor.worker_pid("collect"), began))
        store.close()
        stop.set()
        await asyncio.wait_for(running, WITHIN)

    asyncio.run(main())


def test_a_scratch_run_of_the_doctor_touches_no_folder_of_the_owner(tmp_path: Path) -> None:
    """Its checkpoints, imports and W&B runs would stand among the owner's."""
    given = {
        "train.checkpoint.save_dir": "ckpt",
        "train.checkpoint.resume": "ckpt/checkpoint-1",
        "data.path": "d",
        "data.export_dir": "b",
    }
    made = pipeline._scratch_config(from_flat(given | {"track.to": ["wandb"], "train.method": "opd"}), tmp_path)
    assert (made.train.checkpoint.save_dir, made.train.checkpoint.resume, made.data, made.track.to) == (
        None,
        None,
        type(made.data)(),
        (),
    )
    assert (made.train.method, made.home) == ("opd", str(tmp_path))
