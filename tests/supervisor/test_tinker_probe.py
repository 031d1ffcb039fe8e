"""A service that cannot be reached is in the heartbeat of the engine, with the reason."""

from __future__ import annotations

import time
from pathlib import Path

from openclaw_rl.engines.embedded.client import EngineClient
from openclaw_rl.engines.registry import connect_engine
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store import heartbeats
from openclaw_rl.supervisor.engine_probe import REPORTED_SILENCE, EngineProbe


def test_the_reason_is_shown_while_no_session_is_open(tmp_path: Path) -> None:
    config = from_flat({"home": str(tmp_path), "engine.backend": "tinker"})
    assert isinstance(connect_engine(config), EngineClient)
    probe = EngineProbe(config)
    began = time.monotonic() - REPORTED_SILENCE - 1
    assert probe.worker_state(began, 60.0) == (heartbeats.STARTING, "loading the model")
    probe.error = "the Tinker service refused the key"
    assert probe.worker_state(began, 60.0) == (
        heartbeats.PARKED,
        "the Tinker service refused the key",
    )
    probe.answered_at = time.monotonic()
    assert probe.worker_state(began, 60.0) == (heartbeats.RUNNING, "tinker")
