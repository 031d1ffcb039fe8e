"""Distributed trainer: the train worker sends commands to rank 0, which broadcasts them to the other ranks.

When one rank dies or stops answering, all ranks end and the pending command raises `RanksGone`. The worker then ends
too; the supervisor restarts it, and it continues from the head. Only the worker publishes.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from openclaw_rl.common import process_guard
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.settings import load as settings
from openclaw_rl.settings.load import Config
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.train.ranks import rpc
from openclaw_rl.train.ranks.processes import PROGRAM, Processes, Start
from openclaw_rl.train.ranks.rpc import Done, Listener, Load, Ready, Refused, Step

log = logging.getLogger(__name__)
LOG = "ranks.log"  # standard error of the ranks
_LOOK = 1.0  # seconds


class Ranks(Protocol):
    """The rank processes, and the connection to rank 0."""

    def ask(self, raw: bytes | None) -> bytes:
        """Send a command and return the reply; None: only await the reply that loading sends. Raises `RanksGone`."""
        ...

    def close(self) -> None:
        """End the processes. Idempotent."""
        ...


class RankedTrainer:
    """`protocols.Trainer` over several processes. An error of a command ends them, and `load` starts new ones."""

    def __init__(self, ranks: Ranks, again: Callable[[], Ranks] | None = None) -> None:
        """Wait until the model is loaded. Raises the error of loading it, or `RanksGone`. `again`: starts new ranks."""
        self._ranks, self._again, self._refused = ranks, again, False
        self._told(None)

    def load(self, *, folder: str | None, memory: Mapping[str, Any]) -> None:
        if self._refused and self._again is not None:
            self._ranks, self._refused = self._again(), False
            self._told(None)
        self._told(Load(folder, dict(memory)))

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        answer = self._told(Step(list(samples), out))
        assert isinstance(answer, Done), answer
        return answer.result

    def _told(self, command: Load | Step | None) -> Ready | Done:
        try:
            raw = None if command is None else rpc.encode(command)
            answer: rpc.Answer = rpc.answers.decode(self._ranks.ask(raw))
        except BaseException:  # an interrupt must end the ranks too
            self.close()
            raise
        if isinstance(answer, Refused):
            self.close()
            self._refused = True
            raise rpc.error_of(answer)
        return answer

    def close(self) -> None:
        """End the ranks."""
        self._ranks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def rank_environment(config: Config) -> dict[str, str]:
    """Return the environment of a rank: only the settings that it needs, and no keys."""
    own = Config(home=config.home, model=config.model, train=config.train, run=config.run)
    return settings.foreign_environment({settings.HANDED_DOWN: own.model_dump_json()} | settings.for_training())


def local(config: Config, listener: Listener) -> list[Start]:
    """Return a command for each rank. They rendezvous by a file and use loopback: no port is open to other machines."""
    size, out = config.train.ranks, []
    loop = "lo" if sys.platform == "linux" else "lo0"
    for rank in range(size):
        how = ["--store", str(listener.folder / "store"), "--rank", str(rank), "--ranks", str(size)]
        extra = {"LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": loop, "NCCL_SOCKET_IFNAME": loop}
        out.append(([*PROGRAM, *how, "--link", str(listener.path)], rank_environment(config) | extra))
    return out


def _torchrun(config: Config, listener: Listener | None) -> list[Start]:
    """Return the torchrun command of this machine's ranks, which rendezvous at machine 0. It ends with this process."""
    launch = config.train.launch
    where = ["--master-addr", launch.master_addr, "--master-port", str(launch.master_port)]
    which = ["--nnodes", str(launch.nodes), "--node-rank", str(launch.node_rank)]
    each = ["--nproc-per-node", str(config.train.ranks), *PROGRAM[1:]]
    link = [] if listener is None else ["--link", str(listener.path)]
    command = [PROGRAM[0], "-m", "torch.distributed.run", *which, *where, *each, *link]
    return [([PROGRAM[0], "-I", process_guard.__file__, *command], rank_environment(config))]


async def lend(config: Config, *, stop: asyncio.Event) -> None:
    """Run the train worker of an additional machine, whose ranks take part in the steps of machine 0.

    Consumes: nothing. Produces: heartbeats in this machine's store. Waits for: machine 0.
    Unblocked by: the end of any rank (`RanksGone`).
    """
    master = config.train.launch.master_addr
    store = await asyncio.to_thread(Store.open, config.store_path)
    processes = Processes(_torchrun(config, None), None, config.logs_dir / LOG)
    log.info("%d ranks join %s", config.train.ranks, master)
    try:
        while not stop.is_set():
            await asyncio.to_thread(processes.check)
            await asyncio.to_thread(heartbeats.beat, store, "train", f"{config.train.ranks} ranks work for {master}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _LOOK)
    finally:
        await asyncio.to_thread(processes.close)
        store.close()


def launched(config: Config) -> RankedTrainer:
    """Start the trainer of `train.ranks` and `train.launch`. Raises `ConfigError`, `ModelError`, `RanksGone`."""
    by = config.train.launch.how
    log.info("starting %d ranks on %d machines (%s)", config.train.ranks, config.train.launch.nodes, by)
    return RankedTrainer(_started(config), lambda: _started(config))


def _started(config: Config) -> Ranks:
    if config.train.launch.how == "ray":
        from openclaw_rl.train.ranks.ray_launcher import RayRanks

        started: Ranks = RayRanks(config)
    else:
        listener = Listener()
        starts = _torchrun(config, listener) if config.train.launch.how == "torchrun" else local(config, listener)
        started = Processes(starts, listener, config.logs_dir / LOG)
    atexit.register(started.close)  # for a normal exit; if the worker is killed, the ranks notice
    return started
