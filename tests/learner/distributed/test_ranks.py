"""Several ranks are one trainer: the same steps, and after a death the same steps again. On the starter, in float64."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from openclaw_rl.common.policy_digest import digest_of_folder
from openclaw_rl.common.sockets import free_port
from openclaw_rl.errors import ConfigError, RanksGone
from openclaw_rl.learner.distributed.world import World, assign, split
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import Config, from_flat, known_keys
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.train.ranks import launcher
from openclaw_rl.train.ranks.launcher import RankedTrainer, launch_trainer
from openclaw_rl.train.ranks.processes import RankProcesses
from openclaw_rl.train.ranks.rpc import RpcListener

pytestmark = pytest.mark.system

Draw = Callable[..., list[Sample]]
SETTINGS: dict[str, Any] = {
    "model.dtype": "float64",
    "train.safety.max_turn_log_ratio": 9.0,
    "train.safety.max_batch_log_ratio": 9.0,
    "train.safety.max_step_kl": 1e9,
    "train.batch.micro_tokens": 60,
    "train.ranks": 2,
    "train.launch.timeout": 120.0,
}


def settings(home: Path, **further: Any) -> Config:
    return from_flat(
        SETTINGS | {"home": str(home)} | {k.replace("__", "."): v for k, v in further.items()}
    )


def alone(config: Config) -> LocalTrainer:
    return LocalTrainer(
        str(ModelFiles.from_config(config.model).folder),
        make_method(config.train),
        config.train,
        config.model,
    )


def batches(trainer: LocalTrainer, draw: Draw, sizes: Sequence[int]) -> list[list[Sample]]:
    alike = {1: {"reward": -1.0}}  # a batch of one must have something to say
    return [
        draw(trainer, seed, size, noise=0.2, **alike.get(size, {}))
        for seed, size in enumerate(sizes)
    ]


def same(one: StepResult, two: StepResult) -> None:
    """Losses, gradients, distances, memory and weights: to 1e-6."""
    assert (one.dropped, one.metrics.keys()) == (two.dropped, two.metrics.keys())
    assert json.dumps(one.memory) == json.dumps(two.memory)
    for name in set(one.metrics) - {"seconds"}:
        assert two.metrics[name] == pytest.approx(one.metrics[name], rel=1e-6, abs=1e-6), name
    assert one.folder
    assert two.folder
    assert two.digest == digest_of_folder(two.folder)
    ours, theirs = weights(one.folder), weights(two.folder)
    assert ours.dtype is torch.float64
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-6)


def weights(folder: str) -> torch.Tensor:
    file = next(Path(folder).glob("*model.safetensors"))
    return torch.cat([tensor.flatten() for _, tensor in sorted(load_file(file).items())])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "how",
    [
        {
            "train__launch__shard": True,
            "train__gradient_checkpointing": True,
            "train__safety__max_step_kl": 4.0,
        },
        {"train__finetune": "full", "train__optimizer__learning_rate": 1e-4},
    ],
    ids=["sharded", "full"],
)
def test_two_ranks_equal_one(how: dict[str, Any], draw: Draw, tmp_path: Path) -> None:
    """Also with fewer samples than ranks, and with ranks that have more passes to make than others."""
    config = settings(tmp_path / "home", **how)
    one = alone(config)
    given = batches(one, draw, (7, 1, 5))
    start = weights_of(one)
    done = [one.step(batch, str(tmp_path / f"one-{n}")) for n, batch in enumerate(given)]
    with closing(launch_trainer(config)) as two:
        for n, batch in enumerate(given):
            same(done[n], two.step(batch, str(tmp_path / f"two-{n}")))
        for ours, theirs in zip(one.score(given[0]), two.score(given[0]), strict=True):
            np.testing.assert_allclose(theirs, ours, atol=1e-4)
    assert (weights_of(one) - start).abs().max() > 1e-4, "the steps did something"
    assert (done[0].metrics["step/scale"] < 1) == ("train__safety__max_step_kl" in how), (
        "and were halved where they have to be"
    )


@pytest.mark.timeout(600)
def test_a_second_machine_lends_its_ranks(draw: Draw, tmp_path: Path) -> None:
    """By torchrun. The second machine knows where the first is, and nothing else; it notices that the first is gone."""
    where = {
        "train__ranks": 1,
        "train__launch__nodes": 2,
        "train__launch__master_port": free_port(),
    }
    # After a large first step, the random tokens of the second batch would be too far from what sampled them.
    config = settings(tmp_path / "home", **where, train__optimizer__learning_rate=1e-4)
    knows = (
        "home",
        "train.ranks",
        "train.launch.nodes",
        "train.launch.master_port",
        "train.launch.node_rank",
    )
    flat = {
        k: v
        for k, v in flatten(settings(tmp_path / "other", train__launch__node_rank=1, **where))
        if k in knows
    }
    one = alone(config)
    given = batches(one, draw, (4, 3))
    with ThreadPoolExecutor(1) as thread:
        other = thread.submit(
            lambda: asyncio.run(launcher.join_as_worker(from_flat(flat), stop=asyncio.Event()))
        )
        with closing(launch_trainer(config)) as two:
            for n, batch in enumerate(given):
                same(
                    one.step(batch, str(tmp_path / f"one-{n}")),
                    two.step(batch, str(tmp_path / f"two-{n}")),
                )
        assert isinstance(other.exception(timeout=120), RanksGone)
    (beat,) = signs_of_life(tmp_path / "other")
    assert (beat.name, beat.note, beat.pid) == ("train", "1 ranks work for 127.0.0.1", os.getpid())


def signs_of_life(home: Path) -> list[heartbeats.Heartbeat]:
    store = Store.open(settings(home).store_path)
    try:
        with store.read() as conn:
            return heartbeats.read_heartbeats(conn)
    finally:
        store.close()


def test_a_worker_of_another_machine_writes_heartbeats_while_its_ranks_wait(tmp_path: Path) -> None:
    """Machine 0 does not come; the supervisor here must see all the same that this worker is alive."""
    where = {
        "train__launch__nodes": 2,
        "train__launch__node_rank": 1,
        "train__launch__master_port": free_port(),
    }
    config = settings(tmp_path, **where)

    async def some_time() -> list[float]:
        stop, seen = asyncio.Event(), []
        worker = asyncio.create_task(launcher.join_as_worker(config, stop=stop))
        for _ in range(60):
            await asyncio.sleep(0.5)
            seen += [beat.at for beat in signs_of_life(tmp_path)]
            if len(set(seen)) > 1:
                break
        stop.set()
        await worker
        return seen

    assert len(set(asyncio.run(some_time()))) > 1


def flatten(config: Config) -> Iterator[tuple[str, Any]]:
    for key in known_keys():
        value: Any = config
        for part in key.split("."):
            value = getattr(value, part)
        yield key, value


def weights_of(trainer: LocalTrainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters() if p.requires_grad])


@pytest.mark.timeout(1200)
def test_killed_and_frozen_ranks_do_not_change_the_result(draw: Draw, tmp_path: Path) -> None:
    """In the middle of three steps: rank 0 is killed, rank 1 is killed, rank 1 stops answering."""
    config = settings(tmp_path / "home", train__launch__timeout=20.0)
    one = alone(config)
    given = batches(one, draw, (6, 6, 6, 6))
    done = [one.step(batch, str(tmp_path / f"one-{n}")) for n, batch in enumerate(given)]
    last: StepResult | None = None
    for n, victim in enumerate((0, 1, None)):
        with started(config) as (two, children):
            if last:
                two.load(folder=last.folder, method_state=last.memory)
            last = two.step(given[n], str(tmp_path / f"two-{n}"))
            same(done[n], last)
            os.kill(
                children[1], signal.SIGSTOP
            )  # from here on rank 0 waits for it, in the middle of the step
            if victim is not None:
                threading.Timer(1.0, os.kill, (children[victim], signal.SIGKILL)).start()
            with pytest.raises(RanksGone, match=r"a rank is gone \(process 0 "):
                two.step(given[n + 1], str(tmp_path / f"lost-{n}"))
            assert not (tmp_path / f"lost-{n}").exists()
            for pid in children:  # the others end with it
                with pytest.raises(ProcessLookupError):
                    os.kill(pid, 0)
    with closing(launch_trainer(config)) as two:
        assert last
        two.load(folder=last.folder, method_state=last.memory)
        same(done[3], two.step(given[3], str(tmp_path / "two-3")))


class started:  # noqa: N801 - used as a function is
    """A trainer over processes of which the test knows the ids."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def __enter__(self) -> tuple[RankedTrainer, list[int]]:
        listener = RpcListener()
        starts = launcher.local_commands(self._config, listener)
        self._processes = RankProcesses(
            starts, listener, self._config.logs_dir / launcher.RANKS_LOG
        )
        return RankedTrainer(self._processes), [child.pid for child in self._processes.children]

    def __exit__(self, *error: object) -> None:
        self._processes.close()


@pytest.mark.timeout(300)
def test_an_error_of_every_rank_is_raised_in_the_worker(tmp_path: Path) -> None:
    config = settings(tmp_path / "home", train__lora__targets=["embed_tokens"])
    with pytest.raises(
        ConfigError, match=r"train.lora.targets: model.embed_tokens of .* engines serve adapters"
    ):
        launch_trainer(config)


@pytest.mark.timeout(300)
def test_a_slow_rank_0_reports_the_shared_error(tmp_path: Path) -> None:
    """The other has refused long before it: that one is not gone."""
    config = settings(tmp_path / "home", train__lora__targets=["embed_tokens"])
    listener = RpcListener()
    processes = RankProcesses(
        launcher.local_commands(config, listener), listener, config.logs_dir / launcher.RANKS_LOG
    )
    first = processes.children[0].pid

    def hold() -> None:
        while not (config.logs_dir / "rank-0.log").exists():
            time.sleep(0.01)
        os.kill(first, signal.SIGSTOP)
        log_file = config.logs_dir / "rank-1.log"
        while not (log_file.exists() and "engines serve adapters" in log_file.read_text()):
            time.sleep(0.05)
        time.sleep(3)
        os.kill(first, signal.SIGCONT)

    holding = threading.Thread(target=hold)
    holding.start()
    try:
        with pytest.raises(ConfigError, match="engines serve adapters"):
            RankedTrainer(processes)
    finally:
        holding.join()


@pytest.mark.parametrize(
    "settings_", [{"train.finetune": "full"}, {"train.base_quantization_bits": 4}]
)
def test_a_model_that_cannot_be_sharded_is_refused(settings_: dict[str, Any]) -> None:
    from openclaw_rl.learner.distributed.fsdp import wants_sharding

    with pytest.raises(ConfigError, match=r"train.launch.shard true shards the frozen layers"):
        from_flat(settings_ | {"train.ranks": 2, "train.launch.shard": True})
    assert not wants_sharding(from_flat(settings_ | {"train.ranks": 2}).train, cuda=True)


def test_work_is_assigned_evenly() -> None:
    costs = [5, 1, 9, 9, 2, 7, 3]
    shares = assign(costs, 3)
    assert sorted(n for share in shares for n in share) == list(range(7))
    assert {len(share) for share in shares} == {2, 3}
    sums = [sum(costs[n] for n in share) for share in shares]
    assert max(sums) - min(sums) <= max(costs)
    assert assign([], 2) == [[], []]
    assert assign([4], 2) == [[0], []]


def test_groups_are_split_until_every_rank_has_one() -> None:
    lengths = [10, 1, 1, 1, 9, 30]
    assert split([[0, 1, 2, 3, 4]], lengths, 1) == [[0, 1, 2, 3, 4]]
    assert split([[0, 1, 2, 3, 4]], lengths, 2) == [[0, 1], [2, 3, 4]]
    assert split([[5], [0, 4]], lengths, 2) == [[5], [0, 4]]
    assert split([[5], [0, 4]], lengths, 9) == [[5], [0], [4]]


def test_a_single_rank_works_in_order() -> None:
    assert World().map_over_ranks([3, 1, 2], lambda n, weight: n * weight, float) == [0.0, 1.0, 2.0]
    gradient = torch.nn.Parameter(torch.ones(2))
    gradient.grad = torch.full((2,), 3.0)
    World().all_reduce_grads([gradient])
    assert np.array_equal(gradient.grad, [3.0, 3.0])


SILENT = """
import sys, time
from openclaw_rl.settings.load import from_flat
from openclaw_rl.learner.distributed import process_group as group
config = from_flat({"train.ranks": 2, "train.launch.timeout": 2.0, "model.device": "cpu"})
world = group.join(config.train, config.model, store=sys.argv[1], rank=int(sys.argv[2]), size=2)
world.barrier()
if world.rank:
    time.sleep(60)
began = time.monotonic()
try:
    world.broadcast(b"word")
except RuntimeError:
    print(time.monotonic() - began)
"""


def test_an_unresponsive_rank_is_detected(tmp_path: Path) -> None:
    """Frozen between two collectives, rank 0 alone has something to say, and must not wait as the others do for it."""
    where = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    how: dict[str, Any] = {
        "env": where,
        "stdout": subprocess.PIPE,
        "stdin": subprocess.DEVNULL,
        "text": True,
    }
    ranks_ = [
        subprocess.Popen([sys.executable, "-c", SILENT, str(tmp_path / "store"), str(rank)], **how)
        for rank in (0, 1)
    ]
    try:
        said, _ = ranks_[0].communicate(timeout=150)
    finally:
        for rank in ranks_:
            rank.kill()
            rank.wait()
    ranks_[1].stdout.close()  # type: ignore[union-attr]
    assert 1.5 < float(said) < 20
