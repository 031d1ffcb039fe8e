"""The load, the settings and the limits of a system at SkyRL's open Tinker server, and kills of the server.

The server runs on the CPU and does one thing at a time: sampling, scoring and training wait for one another.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import time
from collections.abc import AsyncIterator
from typing import Any

from benchmarks.faults.causes import Cause, FaultScene
from benchmarks.faults.clients import CrowdLoad
from benchmarks.faults.invariants import PlanLimits
from benchmarks.flaky_proxy import Trouble
from benchmarks.skyrl_server import KEY, RANK, SkyrlServer

from openclaw_rl.settings.load import Config
from openclaw_rl.store import consents
from openclaw_rl.store.db import Store
from openclaw_rl.tinker.consent import EVENT

# Seconds; the SDK waits 60 s for each request that the server leaves without an answer.
_LONGEST_REPLY = 240.0
LOAD = CrowdLoad(users=1, pause=0.5, probe_pause=3.0, wait=_LONGEST_REPLY)
LIMITS = PlanLimits(
    outage=_LONGEST_REPLY, stall=_LONGEST_REPLY, recovery=300.0, trainer_start=300.0, learning=900.0
)
TROUBLES: dict[str, Trouble] = {"429": 429, "503": 503, "no answers": "hang"}
# Seconds of a call, with its retries; also until the engine answers.
_WITHIN = 600.0
# Seconds before the server is started again.
_LONGEST_DOWN = 5.0


def missing_server() -> str | None:
    """Return why the open server cannot be started here; None: it can."""
    if all(importlib.util.find_spec(name) for name in ("skyrl", "tinker")):
        return None
    return "SkyRL's server is not installed. `make faults-tinker` installs it and runs this plan"


def make_settings(server: SkyrlServer, url: str) -> dict[str, Any]:
    """Return the settings of a system that serves and trains at this server. `url`: its address, or that of a proxy."""
    return {
        "engine.backend": "tinker",
        "engine.max_context": 1024,
        "train.trainer": "tinker",
        "train.lora.rank": RANK,
        "gate.kind": "numbers",
        "practice.enabled": False,
        "tinker.url": url,
        "tinker.api_key": KEY,
        "tinker.model": str(server.model),
        "tinker.reduction": "mean",
        "tinker.sample_from": "models",
        "tinker.call_timeout": _WITHIN,
        "serve.engine_wait": _WITHIN,
        "run.heartbeat_timeout": _WITHIN,
        "run.max_crashes": 1_000_000,
        "run.max_restart_delay": 1.0,
    }


def record_consent(config: Config) -> None:
    """Record the yes to this server in the home, which `openclaw-rl up` asks for."""
    assert config.tinker.url is not None
    with Store.open(config.store_path) as store, store.write() as conn:
        consents.record_consent(conn, EVENT, config.tinker.url, ("serve", "train"), time.time())


@contextlib.asynccontextmanager
async def killed_server(scene: FaultScene) -> AsyncIterator[None]:
    """SIGKILL of the server and its engine at a random moment; it is started again some seconds later."""
    assert scene.server is not None
    scene.server.kill()
    await asyncio.sleep(scene.rng.uniform(0.0, _LONGEST_DOWN))
    await asyncio.to_thread(scene.server.__enter__)
    yield


def troubled_server(trouble: Trouble) -> Cause:
    """Every other request to the server is answered with this status, or not at all, and does not reach it."""

    @contextlib.asynccontextmanager
    async def cause(scene: FaultScene) -> AsyncIterator[None]:
        assert scene.proxy is not None
        scene.proxy.begin_trouble(trouble)
        try:
            yield
        finally:
            scene.proxy.end_trouble()

    return cause
