"""A whole system on a busy machine: no healthy worker is killed, and what really hangs is found and named."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.loaded_hour import busy_processes, read_accounts, read_crashes
from tests.system.test_parked import talk, wait_for

from openclaw_rl.common.progress import WorkKind
from openclaw_rl.settings.load import Config
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

pytestmark = pytest.mark.system

LOAD = 20
LIMIT = 8.0  # seconds; `run.heartbeat_timeout`, so that a slow pass under this load would exceed it by the clock
SETTINGS: dict[str, Any] = {
    "run.heartbeat_timeout": LIMIT,
    "run.max_restart_delay": 1.0,
    "train.batch.min_turns": 2,
    "practice.enabled": False,
    "gate.kind": "numbers",
    "gate.watch": False,
    "train.safety.lease_ttl": 1.0,
    "train.safety.max_step_kl": 10.0,
    "train.safety.gate_kl": 1e9,
    "train.method": "binary",
}
LOSS = """
import threading, time
from pathlib import Path

def wait_on_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def count_for_ever():
    number = 0
    while True:
        number += 1

def compute_loss(policy_logits, reference_logits, rewards, advantages, config):
    # The check of the signs when the loss is loaded has one to three tokens.
    mode = Path({mode!r}).read_text() if len(policy_logits) > 3 else "train"
    if mode == "deadlock":
        wait_on_a_lock()
    if mode == "spin":
        count_for_ever()
    return -(policy_logits * advantages).mean()
"""


def pid_of(config: Config, worker: str) -> int:
    """Return the process id of a worker, once it has sent a heartbeat: the gateway answers before all have."""

    def read_pid() -> int | None:
        with Store.open(config.store_path) as store, store.read() as conn:
            beats = heartbeats.read_heartbeats(conn)
        return next((beat.pid for beat in beats if beat.name == worker), None)

    return int(wait_for(read_pid))


def all_trained(config: Config) -> bool:
    """Whether each judged turn was trained on or has a reason, but for a rest that is smaller than a batch."""
    accounts = read_accounts(config)
    return accounts.judged > 0 and accounts.waiting < 2 and accounts.used > 0


def test_beside_twenty_processes_that_compute_no_healthy_worker_is_killed(tmp_path: Path) -> None:
    """The trainer gets a tenth of a processor, or less."""
    with SubprocessSystem(scratch_config(tmp_path / "home", SETTINGS)) as system:
        with busy_processes(LOAD, 900.0):
            for _ in range(5):
                talk(system)
            wait_for(lambda: all_trained(system.config))
            assert read_crashes(system.config) == []
        accounts = read_accounts(system.config)
        assert {state for _, state, _, _ in accounts.versions} == {"live"}


def next_crash(config: Config, action: Callable[[], object]) -> str:
    """Return how the trainer ends that was healthy before the action. No other worker ends."""
    before = len(read_crashes(config))
    action()
    wait_for(lambda: len(read_crashes(config)) > before)
    (crash,) = read_crashes(config)[before:]
    worker, how = crash
    assert worker == "train"
    return how


def test_what_really_hangs_is_found_and_named(tmp_path: Path) -> None:
    """A trainer that a signal stops, a loss that waits on a lock for ever, and one that computes for ever."""
    mode, loss = tmp_path / "mode", tmp_path / "loss.py"
    mode.write_text("train")
    loss.write_text(LOSS.format(mode=str(mode)))
    config = scratch_config(tmp_path / "home", SETTINGS | {"train.loss.path": str(loss)})

    with SubprocessSystem(config) as system:

        def trains() -> None:
            """Wait until another version is published."""
            head = len(read_accounts(config).versions)
            talk(system)
            talk(system)
            wait_for(lambda: len(read_accounts(config).versions) > head)

        def hang_in(what: str) -> Callable[[], None]:
            def begin() -> None:
                mode.write_text(what)
                talk(system)
                talk(system)

            return begin

        def recover() -> None:
            mode.write_text("train")
            pid = pid_of(config, "train")
            wait_for(lambda: pid_of(config, "train") != pid or all_trained(config))
            wait_for(lambda: all_trained(config))

        trains()
        how = next_crash(config, lambda: os.kill(pid_of(config, "train"), signal.SIGSTOP))
        assert how.startswith("stopped by a signal for")
        # The second, if the signal came inside a transaction.
        limits = (f"run.heartbeat_timeout, here {LIMIT:g} s", "while it held the write lock")
        assert any(limit in how for limit in limits)
        trains()
        for what, words, function in (
            ("deadlock", "without progress or use of the processor", "wait_on_a_lock"),
            ("spin", "of processor time without progress", "count_for_ever"),
        ):
            how = next_crash(config, hang_in(what))
            assert f"{words} in the loss function of train.loss.path (run.heartbeat_timeout" in how
            log = (config.logs_dir / "supervisor.log").read_text()
            assert f"at {loss}:" in log
            assert f"({function})" in log
            recover()
        assert all(worker == "train" for worker, _ in read_crashes(config))


def test_kills_from_outside_reject_no_version(tmp_path: Path) -> None:
    """As by a system whose memory runs out: the batch that was in work twice is trained on as a whole."""
    mode, loss = tmp_path / "mode", tmp_path / "loss.py"
    mode.write_text("deadlock")
    loss.write_text(LOSS.format(mode=str(mode)))
    settings = SETTINGS | {"train.loss.path": str(loss), "run.heartbeat_timeout": 120.0}
    config = scratch_config(tmp_path / "home", settings)

    def pid_in_loss() -> int | None:
        with Store.open(config.store_path) as store, store.read() as conn:
            beats = heartbeats.read_heartbeats(conn)
        is_in_loss = (
            beat.pid
            for beat in beats
            if beat.activity is not None and beat.activity.kind is WorkKind.LOSS
        )
        return next(is_in_loss, None)

    with SubprocessSystem(config) as system:
        talk(system)
        talk(system)
        first = wait_for(pid_in_loss)
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: pid_in_loss() not in (None, first))
        mode.write_text("train")
        os.kill(pid_of(config, "train"), signal.SIGKILL)
        wait_for(lambda: all_trained(config))
        assert "rejected" not in {state for _, state, _, _ in read_accounts(config).versions}


@pytest.mark.parametrize("worker", ["collect", "judge"])
def test_another_worker_that_a_signal_stops_is_found_beside_a_load(
    tmp_path: Path, worker: str
) -> None:
    with SubprocessSystem(scratch_config(tmp_path / "home", SETTINGS)) as system:
        talk(system)
        with busy_processes(LOAD, 900.0):
            os.kill(pid_of(system.config, worker), signal.SIGSTOP)
            wait_for(lambda: read_crashes(system.config))
        ((name, how),) = read_crashes(system.config)
        assert name == worker
        assert how.startswith("stopped by a signal for")
