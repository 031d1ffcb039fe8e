"""Settings of processes: where they run, how often workers look for work, which ranks they start, what they log."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openclaw_rl.collect import worker as collect
from openclaw_rl.errors import OpenClawError
from openclaw_rl.judge import worker as judge
from openclaw_rl.learner.distributed.fsdp import wants_sharding
from openclaw_rl.settings.load import foreign_environment, from_flat, to_environment
from openclaw_rl.supervisor.home_folder import prepare_home
from openclaw_rl.supervisor.supervisor import Supervisor, with_required_workers
from openclaw_rl.train import worker as train
from openclaw_rl.train.ranks import launcher
from openclaw_rl.train.ranks.rpc import RpcListener
from openclaw_rl.trajectories import sync_worker

POLLED: dict[str, tuple[Callable[..., Any], object, str]] = {
    "collect.poll": (collect.run, collect.Collector, "run_once"),
    "judge.poll": (judge.run, judge.JudgeQueue, "_read_closed_turns"),
    "data.poll": (sync_worker.run, sync_worker.FolderSync, "run_once"),
}
"""Setting -> (worker, its class, its method that looks for work)."""


def looks(
    run: Callable[..., Any],
    counted: threading.Semaphore,
    given: dict[str, Any],
    home: Path,
    *,
    wait: float,
) -> int:
    """Return how often a worker looks for work, at most five times; `wait`: seconds that it may take for the next."""

    async def main() -> int:
        stop = asyncio.Event()
        running = asyncio.create_task(run(from_flat({"home": str(home)} | given), stop=stop))
        count = 0
        while count < 5 and await asyncio.to_thread(
            counted.acquire, timeout=wait if count else 20.0
        ):
            count += 1
        stop.set()
        await asyncio.wait_for(running, 240)
        return count

    return asyncio.run(main())


@pytest.mark.parametrize("key", POLLED)
def test_poll_is_the_time_between_two_looks(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, owner, name = POLLED[key]
    counted, plain = threading.Semaphore(0), getattr(owner, name)

    def count(self: Any) -> Any:
        counted.release()
        return plain(self)

    monkeypatch.setattr(owner, name, count)
    prepare_home(from_flat({"home": str(tmp_path)}))
    assert looks(run, counted, {key: 3600.0}, tmp_path, wait=0.3) == 1
    assert looks(run, counted, {key: 0.01}, tmp_path, wait=20.0) == 5


def test_the_trainer_looks_for_turns_as_often_as_train_poll_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = threading.Semaphore(0)
    loop = SimpleNamespace(
        run_once=lambda: counted.release(),
        note="",
        waits=frozenset(),
        close=lambda: None,
        forget_attempts=lambda: None,
    )
    monkeypatch.setattr(train, "open_train_loop", lambda config, store: loop)
    prepare_home(from_flat({"home": str(tmp_path)}))
    assert looks(train.run, counted, {"train.poll": 3600.0}, tmp_path, wait=0.3) == 1
    assert looks(train.run, counted, {"train.poll": 0.01}, tmp_path, wait=20.0) == 5


@pytest.mark.parametrize(
    ("key", "worker"),
    [("engine.gpus", "engine"), ("train.gpus", "train"), ("judge.gpus", "judge-engine")],
)
def test_a_process_sees_the_devices_of_its_setting(
    key: str, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    config = from_flat({key: ["1", "2"]})
    assert to_environment(config, worker)["CUDA_VISIBLE_DEVICES"] == "1,2"
    assert "CUDA_VISIBLE_DEVICES" not in to_environment(config, "gateway")


def test_a_local_judge_model_has_a_process() -> None:
    assert "judge-engine" in with_required_workers(from_flat({"judge.path": "starter"}), ("judge",))
    assert "judge-engine" not in with_required_workers(from_flat({}), ("judge",))


RANKS: dict[str, Any] = {
    "train.ranks": 4,
    "train.launch.nodes": 3,
    "train.launch.node_rank": 1,
    "train.launch.master_addr": "10.0.0.1",
    "train.launch.master_port": 6000,
}


@pytest.mark.parametrize("key", RANKS)
def test_a_setting_changes_the_command_of_the_ranks(key: str) -> None:
    def command(given: dict[str, Any]) -> list[str]:
        return launcher._torchrun_commands(from_flat({"train.launch.nodes": 2} | given), None)[0][0]

    assert command({key: RANKS[key]}) != command({})
    assert command({"train.seed": 8}) == command({})


@pytest.mark.parametrize(("by", "processes"), [("local", 2), ("torchrun", 1)])
def test_the_launcher_setting_chooses_who_starts_the_ranks(
    by: str, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process for each rank, or torchrun, which starts them."""
    started: list[Any] = []

    def start(starts: list[Any], listener: RpcListener, _: Path) -> RpcListener:
        started.extend(starts)
        return listener

    monkeypatch.setattr(launcher, "RankProcesses", start)
    launcher._start_ranks(from_flat({"train.ranks": 2, "train.launch.by": by})).close()
    assert len(started) == processes
    assert [("torch.distributed.run" in command) for command, _ in started] == [
        by == "torchrun"
    ] * processes


@pytest.mark.parametrize(
    ("shard", "cuda", "sharded"), [(None, True, True), (False, True, False), (True, False, True)]
)
def test_shard_decides_whether_the_layers_are_sharded(
    shard: bool | None, cuda: bool, sharded: bool
) -> None:
    settings = from_flat({"train.ranks": 2, "train.launch.shard": shard}).train
    assert wants_sharding(settings, cuda=cuda) is sharded


def test_the_home_is_the_folder_of_the_setting(tmp_path: Path) -> None:
    prepare_home(from_flat({"home": str(tmp_path / "mine")}))
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["logs", "policies"]


@pytest.mark.parametrize("limit", [1, 3])
def test_crashes_stop_the_system(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's process ends at once, because there is no such worker."""
    config = from_flat({"home": str(tmp_path), "run.max_crashes": limit})
    prepare_home(config)
    supervisor = Supervisor(config, ["nobody"], echo=False)
    with pytest.raises(OpenClawError, match="nobody"):
        asyncio.run(asyncio.wait_for(supervisor.run(asyncio.Event()), 100))
    assert supervisor._workers[0].crashes.count == limit


@pytest.mark.parametrize("limit", [4.0, 10.0])
def test_the_pause_of_a_parked_worker_has_a_limit(limit: float, tmp_path: Path) -> None:
    config = from_flat({"home": str(tmp_path), "run.max_restart_delay": limit})
    prepare_home(config)
    supervisor = Supervisor(config, ["engine", "gateway", "judge"], echo=False)
    judge = next(worker for worker in supervisor._workers if worker.name == "judge")
    judge.started_at = time.monotonic()
    for _ in range(7):
        supervisor._record_crash(judge, 1)
    before = time.monotonic()
    supervisor._record_crash(judge, 1)
    assert before + limit <= judge.restart_at <= time.monotonic() + limit


@pytest.mark.parametrize("worker", ["engine", "judge-engine", "gateway", "judge", "train", "data"])
def test_workers_that_load_models_get_the_token_of_the_hub(
    monkeypatch: pytest.MonkeyPatch, worker: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert to_environment(from_flat({}), worker)["HF_TOKEN"] == "hf_secret"


def test_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert "hf_secret" not in to_environment(from_flat({}), "collect").values()
    assert "hf_secret" not in foreign_environment({}).values()
    assert foreign_environment({}, loads_models=True)["HF_TOKEN"] == "hf_secret"
