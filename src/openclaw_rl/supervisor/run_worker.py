"""The process of one worker. Its imports are local: each process loads the code of its own worker alone."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import socket
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

import uvloop

from openclaw_rl.common.log_codes import ENGINE_WORKERS, code_of_error
from openclaw_rl.common.logging_metrics import setup_logging
from openclaw_rl.common.worker_loop import lower_priority, repeat_while_disk_full, stop_on_signals
from openclaw_rl.settings.load import Config
from openclaw_rl.supervisor.worker_process import TRACEBACK_SIGNAL

log = logging.getLogger("openclaw_rl.run")

_NICE_VALUES = {
    "collect": 5,
    "judge": 5,
    "judge-engine": 5,
    "train": 10,
    "data": 10,
    "page": 10,
}
LOADING_NICE = 1
"""Nice value of a trainer that loads the model. With the value of a running trainer, loading takes half a minute."""


def run_worker(name: str, config: Config, *, listen_on: Sequence[int] = ()) -> None:
    """Run one worker until SIGTERM or SIGINT.

    `listen_on`: descriptors of the supervisor's bound sockets, for the gateway.
    """
    readable = "training.log" if name == "train" else None
    setup_logging(name, config.logs_dir, config.run.log_level, readable=readable, named=False)
    # Prints the line at which a signal such as SIGSEGV ended the process.
    faulthandler.enable()
    # Sent before the process is killed because it hangs.
    faulthandler.register(TRACEBACK_SIGNAL, all_threads=True)
    loads_first = name == "train" and config.train.ranks * config.train.launch.nodes == 1
    lower_priority(LOADING_NICE if loads_first else _NICE_VALUES.get(name, 0))
    try:
        if name in ENGINE_WORKERS:
            _serve_engine(name, config)
            return
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run_async_worker(name, config, listen_on))
    except Exception as error:
        # The command prints it. A diagnosis reads codes in the log.
        if code_of_error(error) is not None:
            log.error("%s ends: %s", name, error)
        raise


def _serve_engine(name: str, config: Config) -> None:
    from openclaw_rl.engines import registry

    if name != "engine":
        from openclaw_rl.judge import local_model

        config = local_model.engine_config(config)
    registry.serve(config)


async def _run_async_worker(name: str, config: Config, listen_on: Sequence[int]) -> None:
    stop = stop_on_signals()
    if name == "gateway":
        from openclaw_rl.serve.app import run as run_gateway

        def serve() -> Coroutine[Any, Any, None]:
            # The gateway closes its sockets; after a full disk it runs again.
            listeners = [socket.socket(fileno=os.dup(descriptor)) for descriptor in listen_on]
            return run_gateway(config, stop=stop, listeners=listeners)

        await repeat_while_disk_full(serve, stop)
        return
    if name == "collect":
        from openclaw_rl.collect.worker import run
    elif name == "judge":
        from openclaw_rl.judge.worker import run
    elif name == "data":
        from openclaw_rl.trajectories.sync_worker import run
    elif name == "page":
        from openclaw_rl.page.worker import run
    else:
        from openclaw_rl.train.worker import run as run_training

        run = partial(
            run_training, on_loaded=lambda threads: lower_priority(_NICE_VALUES[name], but=threads)
        )
    await repeat_while_disk_full(lambda: run(config, stop=stop), stop)
