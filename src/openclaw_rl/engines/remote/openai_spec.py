"""An OpenAI-compatible endpoint at `engine.url` as an engine."""

from __future__ import annotations

from openclaw_rl.errors import ConfigError
from openclaw_rl.protocols import EngineLink, OnConnect
from openclaw_rl.settings.schema import Config
from openclaw_rl.settings.specs import EngineSpec


def _connect(config: Config, on_connect: OnConnect | None) -> EngineLink:
    from openclaw_rl.engines.remote.openai_compatible import OpenAiEngine

    return OpenAiEngine(config, on_connect=on_connect)


def _run(config: Config) -> None:
    from openclaw_rl.engines.remote.http_client import OPENAI_HEALTH
    from openclaw_rl.engines.remote.server_process import watch_url

    watch_url(config, OPENAI_HEALTH)


def _check_start(config: Config, wait: float) -> None:
    from openclaw_rl.engines.remote.openai_compatible import OpenAiEngine, check_endpoint

    check_endpoint(config, OpenAiEngine, wait=wait)


def _check_settings(config: Config) -> None:
    if not config.engine.url:
        raise ConfigError(
            "engine.backend is openai: engine.url is needed too, e.g. http://127.0.0.1:8001/v1"
        )


SPEC = EngineSpec(
    name="openai",
    summary="an endpoint at `engine.url` that returns token ids and log-probabilities",
    connect=_connect,
    run=_run,
    check_start=_check_start,
    check_settings=_check_settings,
    loads_versions=False,
)
