"""Distributed trainer: the train worker sends commands to rank 0, which broadcasts them to the other ranks.

When one rank dies or stops answering, all ranks end and the pending command raises `RanksGone`. The worker then ends
too; the supervisor restarts it, and it continues from the head. Only the worker publishes.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from openclaw_rl.common import process_guard
from openclaw_rl.common.worker_loop import run_worker_loop
from openclaw_rl.errors import rebuild_error
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.settings import load as settings
from openclaw_rl.settings.load import Config
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.train.ranks import rpc
from openclaw_rl.train.ranks.processes import RANK_PROGRAM, ProcessSpec, RankProcesses
from openclaw_rl.train.ranks.rpc import (
    ErrorReply,
    LoadCommand,
    LogprobsReply,
    RpcListener,
    ScoreCommand,
    StepCommand,
    StepReply,
)
from openclaw_rl.types import Logprobs

log = logging.getLogger(__name__)
# Standard error of the ranks.
RANKS_LOG = "ranks.log"
# Seconds.
_POLL_SECONDS = 1.0


class RankPool(Protocol):
    """The rank processes, and the connection to rank 0."""

    def send_command(self, raw: bytes | None) -> bytes:
        """Send a command and return the reply; None: only await the reply that loading sends. Raises `RanksGone`."""

    def close(self) -> None:
        """End the processes. Idempotent."""


class RankedTrainer:
    """`protocols.Trainer` over several processes. An error of a command ends them, and `load` starts new ones."""

    computes_here = True

    def __init__(self, ranks: RankPool, again: Callable[[], RankPool] | None = None) -> None:
        """Wait until the model is loaded. Raises the error of loading it, or `RanksGone`. `again`: starts new ranks."""
        self._ranks = ranks
        self._restart = again
        self._has_failed = False
        self._send_command(None)

    def load(self, *, folder: str | None, method_state: Mapping[str, Any]) -> None:
        if self._has_failed and self._restart is not None:
            self._ranks = self._restart()
            self._has_failed = False
            self._send_command(None)
        self._send_command(LoadCommand(folder, dict(method_state)))

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        answer = self._send_command(StepCommand(list(samples), out))
        assert isinstance(answer, StepReply), answer
        return answer.result

    def score(self, samples: Sequence[Sample]) -> list[Logprobs]:
        answer = self._send_command(ScoreCommand(list(samples)))
        assert isinstance(answer, LogprobsReply), answer
        return answer.logprobs

    def _send_command(self, command: rpc.RankCommand | None) -> rpc.RankReply:
        try:
            raw = None if command is None else rpc.encode(command)
            answer: rpc.RankReply = rpc.reply_decoder.decode(self._ranks.send_command(raw))
        except BaseException:
            # An interrupt must end the ranks too.
            self.close()
            raise
        if isinstance(answer, ErrorReply):
            self.close()
            self._has_failed = True
            raise rebuild_error(answer.kind, answer.message)
        return answer

    def close(self) -> None:
        """End the ranks."""
        self._ranks.close()


def rank_environment(config: Config) -> dict[str, str]:
    """Return the environment of a rank: only the settings that it needs, and no keys."""
    needed = Config(home=config.home, model=config.model, train=config.train, run=config.run)
    return settings.foreign_environment(
        {settings.CONFIG_VARIABLE: needed.model_dump_json()} | settings.trainer_variables(),
        loads_models=True,
    )


def local_commands(config: Config, listener: RpcListener) -> list[ProcessSpec]:
    """Return a command for each rank. They rendezvous by a file and use loopback: no port is open to other machines."""
    size = config.train.ranks
    out = []
    loop = "lo" if sys.platform == "linux" else "lo0"
    for rank in range(size):
        how = ["--store", str(listener.folder / "store"), "--rank", str(rank), "--ranks", str(size)]
        extra = {"LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": loop, "NCCL_SOCKET_IFNAME": loop}
        out.append(
            ([*RANK_PROGRAM, *how, "--link", str(listener.path)], rank_environment(config) | extra)
        )
    return out


def _torchrun_commands(config: Config, listener: RpcListener | None) -> list[ProcessSpec]:
    """Return the torchrun command of this machine's ranks, which rendezvous at machine 0. It ends with this process."""
    launch = config.train.launch
    where = ["--master-addr", launch.master_addr, "--master-port", str(launch.master_port)]
    which = ["--nnodes", str(launch.nodes), "--node-rank", str(launch.node_rank)]
    each = ["--nproc-per-node", str(config.train.ranks), *RANK_PROGRAM[1:]]
    link = [] if listener is None else ["--link", str(listener.path)]
    command = [RANK_PROGRAM[0], "-m", "torch.distributed.run", *which, *where, *each, *link]
    return [([RANK_PROGRAM[0], "-I", process_guard.__file__, *command], rank_environment(config))]


async def join_as_worker(config: Config, *, stop: asyncio.Event) -> None:
    """Run the train worker of an additional machine, whose ranks take part in the steps of machine 0.

    Consumes: nothing. Produces: heartbeats in this machine's store. Waits for: machine 0.
    Unblocked by: the end of any rank (`RanksGone`).
    """
    master = config.train.launch.master_addr
    store = await asyncio.to_thread(Store.open, config.store_path)
    processes = RankProcesses(_torchrun_commands(config, None), None, config.logs_dir / RANKS_LOG)
    log.info("%d ranks join %s", config.train.ranks, master)
    try:
        await run_worker_loop(
            processes.check_running,
            heartbeats.heartbeat_writer(
                store, "train", lambda: f"{config.train.ranks} ranks work for {master}"
            ),
            stop,
            poll=_POLL_SECONDS,
        )
    finally:
        await asyncio.to_thread(processes.close)
        store.close()


def launch_trainer(config: Config) -> RankedTrainer:
    """Start the trainer of `train.ranks` and `train.launch`. Raises `ConfigError`, `ModelError`, `RanksGone`."""
    by = config.train.launch.launcher
    log.info(
        "starting %d ranks on %d machines (%s)", config.train.ranks, config.train.launch.nodes, by
    )
    return RankedTrainer(_start_ranks(config), lambda: _start_ranks(config))


def _start_ranks(config: Config) -> RankPool:
    if config.train.launch.launcher == "ray":
        from openclaw_rl.train.ranks.ray_launcher import RayRanks

        started: RankPool = RayRanks(config)
    else:
        listener = RpcListener()
        starts = (
            _torchrun_commands(config, listener)
            if config.train.launch.launcher == "torchrun"
            else local_commands(config, listener)
        )
        started = RankProcesses(starts, listener, config.logs_dir / RANKS_LOG)
    # For a normal exit; if the worker is killed, the ranks notice.
    atexit.register(started.close)
    return started
