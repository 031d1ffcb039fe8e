"""vLLM as an engine: a server that is started here, or one at `engine.url`."""

from __future__ import annotations

from openclaw_rl.protocols import EngineLink, OnConnect
from openclaw_rl.settings.schema import Config
from openclaw_rl.settings.specs import EngineSpec


def _connect(config: Config, on_connect: OnConnect | None) -> EngineLink:
    from openclaw_rl.engines.remote import vllm

    return vllm.connect_engine(config, on_connect=on_connect)


def _run(config: Config) -> None:
    from openclaw_rl.engines.remote import vllm_launch
    from openclaw_rl.engines.remote.server_process import watch_url

    if config.engine.url is not None:
        watch_url(config, "/health")
    else:
        vllm_launch.main(config)


def _check_start(config: Config, _wait: float) -> None:
    from openclaw_rl.engines.remote import vllm_launch

    if config.engine.url is None:
        vllm_launch.check_vllm(config)


SPEC = EngineSpec(
    name="vllm",
    summary="a vLLM server, started here or running at `engine.url`",
    connect=_connect,
    run=_run,
    check_start=_check_start,
    settings=("engine.gpus", "engine.max_batch", "engine.python", "engine.args"),
    alternatives=("sglang", "embedded"),
    convention="processed",
    runs_here=True,
    loads_judge=True,
)
