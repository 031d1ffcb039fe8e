"""An engine that hangs: its replies end with an error, it is restarted, and its heartbeat says so meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from openclaw_rl.engines.embedded.client import EngineClient
from openclaw_rl.errors import EngineGone
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.engine_probe import EngineProbe
from openclaw_rl.supervisor.home_folder import prepare_home
from openclaw_rl.supervisor.supervisor import Supervisor
from openclaw_rl.types import Generation, Sampling

WITHIN = 600.0  # seconds, on a busy machine


async def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


def read_heartbeat(config: Config) -> heartbeats.Heartbeat | None:
    with Store.open(config.store_path) as store, store.read() as conn:
        return next(
            (beat for beat in heartbeats.read_heartbeats(conn) if beat.name == "engine"), None
        )


async def reply_until_error(client: EngineClient) -> str:
    """Generate a reply without end, again if it ends, until it ends with an error. Return the error."""
    sampling = Sampling(temperature=1.0, max_tokens=0)
    try:
        while True:
            ask = Generation(
                id="r",
                version=0,
                prompt_ids=np.arange(8, dtype=np.int32),
                sampling=sampling,
                stop_token_ids=(),
            )
            async for _ in client.generate(ask):
                pass
    except EngineGone as error:
        return str(error)


def is_running(config: Config) -> bool:
    beat = read_heartbeat(config)
    return beat is not None and beat.state == heartbeats.RUNNING


@pytest.mark.system
def test_a_hung_engine_is_restarted_and_its_replies_end_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openclaw_rl.supervisor.engine_probe.REPORTED_SILENCE", 2.0)
    limit = 6.0
    config = from_flat(
        {"home": str(tmp_path), "run.heartbeat_timeout": limit, "run.log_level": "error"}
    )
    prepare_home(config)

    async def main() -> None:
        stop = asyncio.Event()
        supervisor = Supervisor(config, ["engine"], echo=False)
        running = asyncio.create_task(supervisor.run(stop))
        client = EngineClient(config.engine_socket)
        probe = supervisor._probes["engine"]
        await wait_for(lambda: probe.answered_at)
        await wait_for(lambda: is_running(config))
        replying = asyncio.create_task(reply_until_error(client))
        await asyncio.sleep(0.5)
        pid, hung_at = supervisor.worker_pid("engine"), time.monotonic()
        assert pid is not None
        assert not replying.done()
        os.kill(pid, signal.SIGSTOP)

        def is_reported() -> bool:
            found = read_heartbeat(config)
            return (
                found is not None
                and found.state == heartbeats.PARKED
                and "has not answered for" in found.note
            )

        await wait_for(is_reported)
        assert supervisor.worker_pid("engine") == pid
        error = await asyncio.wait_for(replying, WITHIN)
        ended = time.monotonic() - hung_at
        assert "the engine's process ended" in error
        assert ended > limit - 2
        await wait_for(lambda: supervisor.worker_pid("engine") not in (None, pid))
        restarted = time.monotonic()
        await wait_for(lambda: (probe.answered_at or 0.0) > restarted)
        await client.close()
        stop.set()
        await asyncio.wait_for(running, WITHIN)

    asyncio.run(main())


def test_a_foreign_server_that_does_not_answer_is_reported_and_not_restarted() -> None:
    probe = EngineProbe(from_flat({"engine.backend": "vllm", "engine.url": "http://127.0.0.1:9"}))
    assert probe.is_foreign
    assert probe.worker_state(time.monotonic(), 120.0) is None
    found = probe.worker_state(time.monotonic() - 60, 120.0)
    assert found is not None
    state, note = found
    assert state == heartbeats.PARKED
    assert "the engine at http://127.0.0.1:9 has not answered for 60 s" in note
    assert "engine.url" in note


FIREWORKS = {
    "engine.backend": "fireworks",
    "engine.max_context": 64,
    "fireworks.url": "http://127.0.0.1:9",
    "fireworks.api_key": "fw-key",
    "fireworks.account": "me",
    "fireworks.base_model": "accounts/fireworks/models/letters",
}


def test_a_service_that_does_not_answer_is_reported_and_its_watcher_is_not_restarted() -> None:
    """Without a network there is no model that loads, and no process that a restart heals."""
    probe = EngineProbe(from_flat(FIREWORKS))
    assert probe.is_foreign
    probe.error = "no engine answers at http://127.0.0.1:9/inference"
    found = probe.worker_state(time.monotonic() - 60, 120.0)
    assert found is not None
    state, note = found
    assert state == heartbeats.PARKED
    assert (
        "the engine at http://127.0.0.1:9 has not answered for 60 s (no engine answers at" in note
    )
    assert "Check the network, or correct fireworks.url" in note
    assert "engine.url" not in note


def test_a_service_is_not_asked_every_second() -> None:
    """It counts requests. Between two answers it is running."""
    began = time.monotonic() - 100
    for settings, state in ((FIREWORKS, heartbeats.RUNNING), ({"engine.backend": "vllm"}, None)):
        probe = EngineProbe(from_flat(settings))
        probe.answered_at = time.monotonic() - 12
        found = probe.worker_state(began, 120.0)
        assert (found and found[0]) == state, settings
