"""The Fireworks service as an engine, and what it is sent when it serves."""

from __future__ import annotations

from openclaw_rl.errors import ConfigError
from openclaw_rl.protocols import EngineLink, OnConnect
from openclaw_rl.settings.schema import Config
from openclaw_rl.settings.schema_fireworks import FireworksConfig
from openclaw_rl.settings.specs import EngineSpec, ForeignServer, ServiceConsent

_SERVICE_PAUSE = 10.0
"""Seconds between two health checks: the service counts requests."""


def _connect(config: Config, on_connect: OnConnect | None) -> EngineLink:
    from openclaw_rl.engines.remote.fireworks import FireworksEngine

    return FireworksEngine(config, on_connect=on_connect)


def _run(config: Config) -> None:
    import asyncio

    from openclaw_rl.engines.remote.fireworks import http_client
    from openclaw_rl.engines.remote.server_process import watch_server

    asyncio.run(watch_server(http_client(config), _find_server(config)))


def _check_start(config: Config, wait: float) -> None:
    from openclaw_rl.engines.remote.fireworks import FireworksEngine
    from openclaw_rl.engines.remote.openai_compatible import check_endpoint

    check_endpoint(config, FireworksEngine, wait=wait)


def _find_server(config: Config) -> ForeignServer:
    cure = "Check the network, or correct fireworks.url"
    return ForeignServer(url=config.fireworks.url, cure=cure, pause=_SERVICE_PAUSE)


def _check_settings(config: Config) -> None:
    """Raise `ConfigError` for what serving at Fireworks needs or cannot do."""
    engine = config.engine
    fireworks = config.fireworks
    for is_wrong, message in (
        (
            engine.url or engine.logprob_convention not in (None, "raw"),
            "the address is fireworks.url, and log-probabilities are raw. Unset engine.url, engine.logprob_convention",
        ),
        (not fireworks.api_key, "fireworks.api_key (FIREWORKS_API_KEY) is needed"),
        (
            not fireworks.account,
            "fireworks.account is needed: the id of your account, which `firectl account get` shows",
        ),
        (
            not fireworks.base_model,
            "fireworks.base_model is needed: the name of model.path there, e.g. accounts/fireworks/models/qwen3-8b",
        ),
        (
            engine.max_context is None,
            "engine.max_context is needed: the tokens of a context of the deployment",
        ),
        (
            config.train.finetune == "full",
            "it serves adapters of this home. Set train.finetune to lora",
        ),
    ):
        if is_wrong:
            raise ConfigError(f"engine.backend is fireworks: {message}")


def serving_text(config: Config, _purposes: tuple[str, ...] = ("serve",)) -> str:
    """Return what the service gets when it serves."""
    return (
        f"With these settings the Fireworks service ({config.fireworks.url}) gets:\n"
        "  - to answer: the tokens of every prompt (system text, conversation, tools, lessons) and of every reply;\n"
        "  - the names of the models that answer, and the key.\n"
        "A reaction that is the next message of its conversation is part of the next prompt.\n"
        "Scores, training and the store stay here."
    )


SPEC = EngineSpec(
    name="fireworks",
    summary="the Fireworks service, which only serves (docs/guides/fireworks.md)",
    experimental=True,
    connect=_connect,
    run=_run,
    check_start=_check_start,
    check_settings=_check_settings,
    find_server=_find_server,
    consent=ServiceConsent(
        service="Fireworks",
        event="consent.fireworks",
        purpose="serve",
        address=lambda config: config.fireworks.url,
        describe=serving_text,
    ),
    section="fireworks",
    settings=tuple(f"fireworks.{name}" for name in FireworksConfig.model_fields),
    repair="docs/guides/fireworks.md what it needs",
    convention="raw",
    is_service=True,
    starts_before_consent=False,
    loads_versions=False,
)
