"""Real trainer processes that freeze or are killed at the worst moment."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from openclaw_rl.common.steady_clock import boot_seconds
from openclaw_rl.settings.load import train_settings
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, training_queue
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder

pytestmark = pytest.mark.system

TTL = 1.0
CHILD = """
import os, signal, sys, time
from pathlib import Path
from openclaw_rl.methods.registry import make_method
from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.settings.load import STARTER, train_settings
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.store.db import Store
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.train.orchestrator import TrainLoop

home, how = Path(sys.argv[1]), sys.argv[2]

class Trainer(ScriptedTrainer):
    def step(self, samples, out):
        result = super().step(samples, out)
        (home / "stepped").touch()
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        while not (home / "go").exists():
            time.sleep(0.01)
        return result

method = make_method(train_settings({"method": "combine"}))
renderer = Renderer(ModelFiles.from_path(STARTER))
builder = SampleBuilder(renderer=renderer, transient=EphemeralMatcher([]), signal=method, max_staleness=64)
train = train_settings({"safety.lease_ttl": float(sys.argv[3])})
loop = TrainLoop(Store.open(home / "store.db"), Trainer(), builder, train, home / "policies")
print("did something:", loop.run_once(), flush=True)
print("then:", loop.run_once(), loop.note, flush=True)
"""


def child(home: Path, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(home), how, str(TTL)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for(path: Path, process: subprocess.Popen[str], seconds: float = 240.0) -> None:
    give_up = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < give_up, "the child did not come that far"
        assert process.poll() is None or path.exists(), process.communicate()[0]
        time.sleep(0.01)


def rescue(store: Store, builder: SampleBuilder, home: Path) -> TrainLoop:
    """Another trainer, which takes over as soon as the lease is free."""
    loop = TrainLoop(
        store,
        ScriptedTrainer(),
        builder,
        train_settings({"safety.lease_ttl": 30.0}),
        home / "policies",
    )
    give_up = time.monotonic() + 240
    while not loop.run_once():
        assert time.monotonic() < give_up, loop.note
        time.sleep(0.05)
    return loop


def expiry(store: Store) -> float:
    with store.read() as conn:
        return float(conn.exec_driver_sql("SELECT expires_at FROM leases").scalar_one())


def names(home: Path) -> list[str]:
    return sorted(p.name for p in (home / "policies").iterdir())


def test_a_trainer_frozen_past_its_lease_publishes_nothing(
    store: Store, builder: SampleBuilder, fill: Callable[..., list[str]], tmp_path: Path
) -> None:
    ids = fill(store, 4)
    frozen = child(tmp_path, "freeze")
    try:
        wait_for(tmp_path / "stepped", frozen)
        time.sleep(1.5 * TTL)
        assert expiry(store) > boot_seconds(), "awake in a long step, it keeps its lease"
        before = expiry(store)
        while (
            expiry(store) == before
        ):  # just after it renewed: frozen with the write lock it would stop everybody
            time.sleep(0.005)
        os.kill(frozen.pid, signal.SIGSTOP)
        loop = rescue(store, builder, tmp_path)
        (tmp_path / "go").touch()
        os.kill(frozen.pid, signal.SIGCONT)
        output = frozen.communicate(timeout=240)[0]
        loop.close()
    finally:
        frozen.kill()
        frozen.wait()
    assert "nothing was published, starting over" in output
    assert re.search("then: False waiting: .* holds the lease", output)
    with store.read() as conn:
        assert [p.version for p in policies.list_all(conn)] == [0, 1]
        head = policies.head(conn)
        assert sorted(u.turn for u in policies.uses_of_version(conn, 1)) == sorted(ids)
    assert names(tmp_path) == [Path(str(head.path)).name]


def test_a_kill_between_folder_and_row_is_recovered(
    store: Store, builder: SampleBuilder, fill: Callable[..., list[str]], tmp_path: Path
) -> None:
    ids = fill(store, 4)
    dead = child(tmp_path, "kill")
    assert dead.wait(timeout=240) == -signal.SIGKILL
    assert dead.stdout is not None
    dead.stdout.close()
    (orphan,) = names(tmp_path)
    with store.read() as conn:
        assert policies.head(conn).version == 0
        free = training_queue.trainable_turns(
            conn, limit=9, max_uses=1, need_score=True, need_hint=True
        )
    assert [i.turn.id for i in free] == ids, "the batch is free again"
    rescue(store, builder, tmp_path).close()
    with store.read() as conn:
        head = policies.head(conn)
        assert head.version == 1
        assert sorted(u.turn for u in policies.uses_of_version(conn, 1)) == sorted(ids)
    assert orphan not in names(tmp_path)
    assert names(tmp_path) == [Path(str(head.path)).name]
