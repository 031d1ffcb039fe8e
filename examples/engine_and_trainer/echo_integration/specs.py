"""The two specs. They are imported by `--help`, so functions import what they need when they are called."""

import asyncio

from echo_integration.settings import EchoConfig
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.registry import section_of
from openclaw_rl.settings.specs import EngineSpec, TrainerSpec


def _connect(config, on_connect):
    from echo_integration.engine import EchoEngine

    return EchoEngine(config)


def _run(config):
    """Run the engine's process. The replies are made in the client, so that it only waits for its end."""
    from openclaw_rl.common.worker_loop import stop_on_signals

    async def wait() -> None:
        await stop_on_signals().wait()

    asyncio.run(wait())


def _check_start(config, wait):
    if not section_of(config, "echo", EchoConfig).reply.strip():
        raise ConfigError("echo.reply is blank: set the text of the replies")


def _create_trainer(config, method, base):
    from openclaw_rl.testing import ScriptedTrainer

    return ScriptedTrainer()


ENGINE = EngineSpec(
    name="echo",
    summary="always gives the reply of `echo.reply`",
    connect=_connect,
    run=_run,
    check_start=_check_start,
    section="echo",
    repair="examples/engine_and_trainer its code",
)
TRAINER = TrainerSpec(
    name="counting",
    summary="counts its steps, and trains nothing",
    create=_create_trainer,
    needs_weights=False,
    scores_top_tokens=False,
)
