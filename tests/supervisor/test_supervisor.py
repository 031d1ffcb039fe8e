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
from openclaw_rl.supervisor.home_folder import prepare_home
from openclaw_rl.supervisor.supervisor import Supervisor

WITHIN = 600.0  # seconds


async def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


def has_beaten(store: Store, pid: int | None, since: float) -> bool:
    with store.read() as conn:
        return any(
            b.name == "collect" and b.pid == pid and b.at > since
            for b in heartbeats.read_heartbeats(conn)
        )


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
        assert supervisor.health_note().startswith(
            "degraded: collect crashed 1x (stopped by a signal for 3"
        )
        assert "run.startup_timeout, here 3 s" in supervisor.health_note()
        store = Store.open(config.store_path)
        await wait_for(lambda: has_beaten(store, second, 0.0))
        began = time.time()
        await wait_for(
            lambda: has_beaten(store, second, began + 1.2)
        )  # its start is over after two checks
        third = await stop_process()
        assert supervisor.health_note().startswith(
            "degraded: collect crashed 2x (stopped by a signal for"
        )
        assert "run.heartbeat_timeout, here 3.5 s" in supervisor.health_note()
        await wait_for(lambda: has_beaten(store, third, began))
        store.close()
        stop.set()
        await asyncio.wait_for(running, WITHIN)

    asyncio.run(main())


def test_a_process_that_cannot_be_started_is_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when no memory or no process id is left; in a system that serves, all other workers continue."""
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    config = from_flat({"home": str(tmp_path), "run.max_crashes": 2})
    prepare_home(config)
    with pytest.raises(
        OpenClawError, match=r"collect crashed 2 times\. Reason: the process cannot be started"
    ):
        asyncio.run(Supervisor(config, ["collect"], echo=False).run(asyncio.Event()))


def test_a_scratch_run_of_the_doctor_touches_no_folder_of_the_owner(tmp_path: Path) -> None:
    """Its checkpoints, imports and W&B runs would be among the owner's."""
    given = {
        "train.checkpoint.save_dir": "ckpt",
        "train.checkpoint.resume": "ckpt/checkpoint-1",
        "data.path": "d",
        "data.export_dir": "b",
    }
    made = pipeline._scratch_config(
        from_flat(given | {"track.to": ["wandb"], "train.method": "opd"}), tmp_path
    )
    assert (
        made.train.checkpoint.save_dir,
        made.train.checkpoint.resume,
        made.data,
        made.track.to,
    ) == (
        None,
        None,
        type(made.data)(),
        (),
    )
    assert (made.train.method, made.home) == ("opd", str(tmp_path))
