"""The supervisor and workers that hang: they are alive and send no heartbeat."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from openclaw_rl.doctor import pipeline
from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.heartbeat_monitor import HeartbeatMonitor
from openclaw_rl.supervisor.supervisor import Supervisor, prepare_home

WITHIN = 60.0  # seconds


def silence(*looks: tuple[float | None, float], own: bool = True) -> float:
    monitor = HeartbeatMonitor(hang=120, start=1000)
    for beat, now in looks:
        monitor.record_check(beat, now, own=own)
    return monitor.silent_seconds


def test_silence_is_the_time_between_checks() -> None:
    assert silence((1.0, 10), (2.0, 11), (2.0, 12), (2.0, 13)) == 2
    assert silence((1.0, 10), (2.0, 11), (2.0, 12), (3.0, 13)) == 0


def test_a_starting_worker_has_the_longer_limit() -> None:
    monitor = HeartbeatMonitor(hang=120, start=1000)
    starting = [(None, float(n)) for n in range(500)]
    loading = [(1.0, float(n)) for n in range(500, 1000)]
    assert not any(monitor.record_check(*each, starting=True) for each in [*starting, *loading])
    assert monitor.silence_limit == 1000
    monitor.record_check(2.0, 1000)
    assert monitor.silence_limit == 120


@pytest.mark.parametrize("beats", [[None], [1.0], [None, 1.0]])
def test_a_worker_that_hangs_while_it_starts_is_found(beats: list[float | None]) -> None:
    monitor = HeartbeatMonitor(hang=120, start=1000)
    for n, beat in enumerate(beats):
        assert not monitor.record_check(beat, float(n), starting=True)
    last = len(beats) - 1
    assert [n for n in range(last + 1, last + 1003) if monitor.record_check(beats[-1], float(n), starting=True)] == [
        last + n for n in (1000, 1001, 1002)
    ]
    assert monitor.silence_limit == 1000


def test_a_running_worker_has_the_shorter_limit() -> None:
    monitor = HeartbeatMonitor(hang=120, start=1000)
    assert not monitor.record_check(2.0, 11), "its first heartbeat: it may hang at once"
    assert [n for n in range(12, 133) if monitor.record_check(2.0, float(n))] == [131, 132]


def test_a_suspended_machine_counts_little() -> None:
    assert silence((1.0, 10), (2.0, 11), (2.0, 5000), (2.0, 5001)) == 3


def test_a_clock_that_was_set_back_is_no_silence() -> None:
    assert silence((100.0, 10), (101.0, 11), (3.0, 12), (4.0, 13)) == 0


def test_another_process_under_the_same_name_is_no_silence() -> None:
    """Two trainers on one home: each overwrites the other's heartbeat."""
    monitor = HeartbeatMonitor(hang=120, start=1000)
    assert not any(monitor.record_check(beat, beat, own=False) for beat in map(float, range(2000)))
    for own in (True, False):
        assert not monitor.record_check(5000.0 + own, 2001.0, own=own)
    assert not any(monitor.record_check(beat, beat, own=False) for beat in map(float, range(6000, 8000)))


def test_a_heartbeat_of_an_earlier_process_does_not_count() -> None:
    monitor = HeartbeatMonitor(hang=120, start=1000)
    assert [n for n in range(1002) if monitor.record_check(7.0, float(n), own=False)] == [1000, 1001]


async def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


def has_beaten(store: Store, pid: int | None, since: float) -> bool:
    with store.read() as conn:
        return any(b.name == "collect" and b.pid == pid and b.at > since for b in heartbeats.read_heartbeats(conn))


@pytest.mark.system
def test_a_hung_worker_is_restarted_while_it_starts_and_while_it_runs(tmp_path: Path) -> None:
    """The first process is stopped before its first heartbeat, the second one after its second."""
    limits = {"run.startup_timeout": 3.0, "run.heartbeat_timeout": 3.5, "run.log_level": "error"}
    config = from_flat({"home": str(tmp_path)} | limits)
    run = config.run.model_copy(update={"startup_timeout": 60.0})
    prepare_home(config)

    async def main() -> None:
        stop = asyncio.Event()
        supervisor = Supervisor(config, ["collect"], echo=False)
        running = asyncio.create_task(supervisor.run(stop))

        async def stop_process() -> int:
            """Stop the worker's process, and return the next one's id."""
            pid = supervisor.worker_pid("collect")
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            await wait_for(lambda: supervisor.worker_pid("collect") not in (None, pid))
            return supervisor.worker_pid("collect") or 0

        await wait_for(lambda: supervisor.worker_pid("collect") is not None)
        # A busy machine starts the next process slowly.
        supervisor._workers[0]._config = config.model_copy(update={"run": run})
        second = await stop_process()
        assert supervisor.health_note() == "degraded: collect crashed 1x (no heartbeat for 3 s)"
        store = Store.open(config.store_path)
        await wait_for(lambda: has_beaten(store, second, 0.0))
        began = time.time()
        await wait_for(lambda: has_beaten(store, second, began + 1.2))  # its start is over after two checks
        third = await stop_process()
        assert supervisor.health_note() == "degraded: collect crashed 2x (no heartbeat for 3.5 s)"
        await wait_for(lambda: has_beaten(store, third, began))
        store.close()
        stop.set()
        await asyncio.wait_for(running, WITHIN)

    asyncio.run(main())


def test_a_process_that_cannot_be_started_is_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when no memory or no process id is left; in a system that serves, all other workers continue."""
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    config = from_flat({"home": str(tmp_path), "run.max_crashes": 2})
    prepare_home(config)
    with pytest.raises(OpenClawError, match=r"collect crashed 2 times\. Reason: the process cannot be started"):
        asyncio.run(Supervisor(config, ["collect"], echo=False).run(asyncio.Event()))


def test_a_scratch_run_of_the_doctor_touches_no_folder_of_the_owner(tmp_path: Path) -> None:
    """Its checkpoints, imports and W&B runs would be among the owner's."""
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
