"""SGLang as an engine: a server that is started here, or one at `engine.url`."""

from __future__ import annotations

from openclaw_rl.protocols import EngineLink, OnConnect
from openclaw_rl.settings.schema import Config
from openclaw_rl.settings.specs import EngineSpec


def _connect(config: Config, on_connect: OnConnect | None) -> EngineLink:
    from openclaw_rl.engines.remote import sglang_launch

    return sglang_launch.connect_engine(config, on_connect=on_connect)


def _run(config: Config) -> None:
    from openclaw_rl.engines.remote import sglang_launch
    from openclaw_rl.engines.remote.http_client import SGLANG_HEALTH
    from openclaw_rl.engines.remote.server_process import watch_url

    if config.engine.url is not None:
        watch_url(config, SGLANG_HEALTH)
    else:
        sglang_launch.main(config)


def _check_start(config: Config, _wait: float) -> None:
    from openclaw_rl.engines.remote import sglang_launch

    if config.engine.url is None:
        sglang_launch.check_sglang(config)


SPEC = EngineSpec(
    name="sglang",
    summary="an SGLang server, started here or running at `engine.url`",
    experimental=True,
    connect=_connect,
    run=_run,
    check_start=_check_start,
    settings=("engine.gpus", "engine.max_batch", "engine.python", "engine.args"),
    alternatives=("vllm", "embedded"),
    runs_here=True,
    loads_judge=True,
    takes_trainer_weights=True,
)
