"""A whole system on SkyRL's server: people talk to the starter policy, a step is taken, and the version answers."""

from __future__ import annotations

import json
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.skyrl_server import KEY, RANK, SkyrlServer

from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import STARTER
from openclaw_rl.store import consents
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config
from openclaw_rl.tinker.consent import EVENT

pytestmark = pytest.mark.timeout(1800)
WITHIN = 900.0  # seconds: the server compiles at each new shape


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ocrl-") as folder:
        yield Path(folder)


def trained_there(server: SkyrlServer, model: Path) -> dict[str, Any]:
    """Settings with which the server trains batches of four turns, whatever their gradient is."""
    return {
        "train.trainer": "tinker",
        "train.method": "binary",
        "train.lora.rank": RANK,
        "train.batch.min_turns": 4,
        "train.safety.gate_grad_norm": 1e9,
        "gate.kind": "numbers",
        "tinker.url": server.url,
        "tinker.api_key": KEY,
        "tinker.model": str(model),
        "tinker.reduction": "mean",
        "run.heartbeat_timeout": WITHIN,
    }


def test_people_talk_and_the_next_version_answers(tmp_path: Path, home: Path) -> None:
    model = ModelFiles.from_path(STARTER).folder
    with SkyrlServer(tmp_path / "server", model) as server:
        settings = {
            "engine.backend": "tinker",
            "engine.max_context": 128,
            "serve.engine_wait": WITHIN,
        } | trained_there(server, model)
        config = scratch_config(home, settings)
        with Store.open(config.store_path) as store, store.write() as conn:
            consents.record_consent(conn, EVENT, server.url, ("serve", "train"), time.time())
        with SubprocessSystem(config) as system:
            replies = [talk(system, f"What is {n} plus 1?") for n in range(4)]
            assert {reply["system_fingerprint"] for reply in replies} == {
                replies[0]["system_fingerprint"]
            }
            for i, reply in enumerate(replies):
                body = {"id": reply["id"], "score": 1 if i % 2 else -1}
                post(system, "/v1/feedback", body)
            wait_for_version(config.store_path, 1)
            end = time.monotonic() + WITHIN
            while talk(system, "Hello")["system_fingerprint"] == replies[0]["system_fingerprint"]:
                assert time.monotonic() < end, system.log_tail()
    with Store.open(config.store_path) as store, store.read() as conn:
        version = policies.get(conn, 1)
        uses = policies.uses_of_version(conn, 1)
    assert version is not None
    assert set(version.files) == {"tinker_version.json", "trainer.json"}
    assert {use.turn for use in uses} == {reply["id"] for reply in replies}
    assert version.metrics["gap"] < 1e-3, "the trainer's log-probabilities are those of the engine"


def post(system: SubprocessSystem, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        system.base_url + path,
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {system.api_key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=WITHIN) as response:
        return dict(json.load(response))


def talk(system: SubprocessSystem, text: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    body = {"model": "openclaw", "messages": messages, "max_tokens": 64, "temperature": 1}
    return post(system, "/v1/chat/completions", body)


def wait_for_version(store_path: Path, version: int) -> None:
    end = time.monotonic() + WITHIN
    with Store.open(store_path) as store:
        while time.monotonic() < end:
            with store.read() as conn:
                if policies.head(conn).version >= version:
                    return
            time.sleep(0.5)
    raise AssertionError(f"no version {version} within {WITHIN:g} s")
