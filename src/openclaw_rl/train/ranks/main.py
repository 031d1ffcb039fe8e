"""Program of one rank, which takes part in every step. Rank 0 also talks to the train worker.

Started by the train worker (`launcher`). Rank 0 broadcasts its settings to all ranks.
"""

from __future__ import annotations

import argparse
import logging
import time
from typing import TYPE_CHECKING

from openclaw_rl.common.logging_metrics import setup_logging
from openclaw_rl.common.parent_death import die_with_parent
from openclaw_rl.common.progress import library_call
from openclaw_rl.errors import OpenClawError
from openclaw_rl.methods.registry import make_method
from openclaw_rl.settings import load as settings
from openclaw_rl.settings.load import Config
from openclaw_rl.train.ranks import rpc
from openclaw_rl.train.ranks.rpc import (
    ErrorReply,
    IdleCommand,
    LoadCommand,
    LogprobsReply,
    ReadyReply,
    RpcChannel,
    ScoreCommand,
    StepReply,
)

if TYPE_CHECKING:
    from openclaw_rl.learner.distributed.process_group import ProcessGroup
    from openclaw_rl.learner.trainer import LocalTrainer

log = logging.getLogger("openclaw_rl.train.rank")
# Seconds for rank 0 to report an error before the worker sees the end of another rank.
ERROR_REPORT_SECONDS = 20.0


def main(arguments: list[str] | None = None) -> None:
    """Serve commands until the worker disconnects. Raises when another rank is gone."""
    parser = argparse.ArgumentParser(prog="openclaw_rl.train.ranks.main")
    parser.add_argument("--link", help="rank 0: the socket of the train worker")
    parser.add_argument(
        "--store", help="rendezvous file of ranks on one machine; default: torchrun's rendezvous"
    )
    parser.add_argument("--rank", type=int, default=-1)
    parser.add_argument("--ranks", type=int, default=-1)
    options = parser.parse_args(arguments)
    die_with_parent()
    config = settings.inherited_config() or Config()
    from openclaw_rl.learner.distributed import process_group

    world = process_group.join(
        config.train, config.model, store=options.store, rank=options.rank, size=options.ranks
    )
    mine = world.rank == 0
    if mine and options.link is None:
        raise OpenClawError(
            "rank 0 is started by `openclaw-rl train`; start only the ranks of the other machines"
        )
    config = Config.model_validate_json(
        world.broadcast(config.model_dump_json().encode() if mine else None)
    )
    setup_logging(f"rank-{world.rank}", config.logs_dir, config.run.log_level)
    link = rpc.connect_to_worker(options.link) if mine else None
    if link is not None:
        rpc.report_progress(link)
    try:
        with library_call():
            trainer = _load_trainer(config, world)
        _serve_commands(trainer, world, link, every=config.train.launch.timeout / 4)
    except (OpenClawError, ValueError) as error:
        # Every rank raises it; only rank 0 reports it.
        log.error("%s", error)
        if link is not None:
            link.send(rpc.encode(ErrorReply(type(error).__name__, str(error))))
        else:
            time.sleep(ERROR_REPORT_SECONDS)
        raise SystemExit(1) from error


def _load_trainer(config: Config, world: ProcessGroup) -> LocalTrainer:
    from openclaw_rl.learner.trainer import LocalTrainer
    from openclaw_rl.render.model_folder import ModelFiles

    path = str(ModelFiles.from_config(config.model).folder)
    trainer = LocalTrainer(path, make_method(config.train), config.train, config.model, world)
    log.info("rank %d of %d: the model is loaded", world.rank, world.size)
    world.barrier()
    return trainer


def _serve_commands(
    trainer: LocalTrainer, world: ProcessGroup, link: RpcChannel | None, *, every: float
) -> None:
    """Serve commands forever. All ranks wait for rank 0, which sends a keep-alive each `every` seconds."""
    if link is not None:
        link.send(rpc.encode(ReadyReply()))
    while True:
        command = rpc.command_decoder.decode(
            world.broadcast(None if link is None else _next_command(link, every))
        )
        if isinstance(command, IdleCommand):
            continue
        if isinstance(command, LoadCommand):
            trainer.load(folder=command.folder, method_state=command.memory)
            done: rpc.RankReply = ReadyReply()
        elif isinstance(command, ScoreCommand):
            done = LogprobsReply(trainer.score(command.samples))
        else:
            done = StepReply(trainer.step(command.samples, command.out))
        if link is not None:
            link.send(rpc.encode(done))


def _next_command(link: RpcChannel, every: float) -> bytes:
    """Return the worker's next command; `IdleCommand` after `every` seconds. Raises `SystemExit` if it is gone."""
    try:
        return link.receive(every) or rpc.encode(IdleCommand())
    except EOFError:
        raise SystemExit(0) from None


if __name__ == "__main__":
    main()
