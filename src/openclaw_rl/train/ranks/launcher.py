"""Several processes take one step together: the room speaks with rank 0, which hands everything on to the others.

When one of them dies or stops answering all of them end, and what was asked raises `RanksGone`. The room then ends,
too; its supervisor starts it again, and it goes on from the head: nothing but the room ever publishes.
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
LOG = "ranks.log"  # what the ranks write to their standard error
_LOOK = 1.0  # seconds


class Ranks(Protocol):
    """The processes, and the way to rank 0."""

    def ask(self, raw: bytes | None) -> bytes:
        """One command's answer; None: the answer that comes by itself, once it is loaded. Raises `RanksGone`."""
        ...

    def close(self) -> None:
        """End them. Again: nothing."""
        ...


class RankedTrainer:
    """`protocols.Trainer` over several processes. They end with what they refuse, and `load` starts others."""

    def __init__(self, ranks: Ranks, again: Callable[[], Ranks] | None = None) -> None:
        """Waits until the model is loaded. Raises what loading it raised, or `RanksGone`. `again`: starts others."""
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
        except BaseException:  # also an interrupt must not leave them behind
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
    """For a rank: of our settings only those that it needs, and no keys."""
    own = Config(home=config.home, model=config.model, train=config.train, run=config.run)
    return settings.foreign_environment({settings.HANDED_DOWN: own.model_dump_json()} | settings.for_training())


def local(config: Config, listener: Listener) -> list[Start]:
    """Every rank a child. They meet by a file and speak over loopback: nothing listens for other machines."""
    size, out = config.train.ranks, []
    loop = "lo" if sys.platform == "linux" else "lo0"
    for rank in range(size):
        how = ["--store", str(listener.folder / "store"), "--rank", str(rank), "--ranks", str(size)]
        extra = {"LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": loop, "NCCL_SOCKET_IFNAME": loop}
        out.append(([*PROGRAM, *how, "--link", str(listener.path)], rank_environment(config) | extra))
    return out


def _torchrun(config: Config, listener: Listener | None) -> list[Start]:
    """This machine's ranks by torchrun; those of further machines meet them at machine 0. It ends when we do."""
    launch = config.train.launch
    where = ["--master-addr", launch.master_addr, "--master-port", str(launch.master_port)]
    which = ["--nnodes", str(launch.nodes), "--node-rank", str(launch.node_rank)]
    each = ["--nproc-per-node", str(config.train.ranks), *PROGRAM[1:]]
    link = [] if listener is None else ["--link", str(listener.path)]
    command = [PROGRAM[0], "-m", "torch.distributed.run", *which, *where, *each, *link]
    return [([PROGRAM[0], "-I", process_guard.__file__, *command], rank_environment(config))]


async def lend(config: Config, *, stop: asyncio.Event) -> None:
    """The room `train` of a further machine: its ranks take part in machine 0's steps.

    Consumes: nothing. Produces: signs of life, in this machine's store. Waits for: machine 0.
    Unblocked by: the end of any rank (`RanksGone`).
    """
    master = config.train.launch.master_addr
    store = await asyncio.to_thread(Store.open, config.store_path)
    processes = Processes(_torchrun(config, None), None, config.logs_dir / LOG)
    log.info("%d ranks join %s", config.train.ranks, master)
    try:
        while not stop.is_set():
            await asyncio.to_thread(processes.check)
            await asyncio.to_thread(heartbeats.beat, store, "train", f"{config.train.ranks} ranks are lent to {master}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _LOOK)
    finally:
        await asyncio.to_thread(processes.close)
        store.close()


def launched(config: Config) -> RankedTrainer:
    """The trainer that `train.ranks` and `train.launch` want. Raises `ConfigError`, `ModelError`, `RanksGone`."""
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
    atexit.register(started.close)  # a room that ends in peace; when it is killed they notice it themselves
    return started
