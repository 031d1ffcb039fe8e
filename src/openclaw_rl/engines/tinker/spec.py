"""The Tinker service as an engine."""

from __future__ import annotations

from openclaw_rl.errors import ConfigError
from openclaw_rl.protocols import EngineLink, OnConnect
from openclaw_rl.settings.schema import Config
from openclaw_rl.settings.specs import EngineSpec
from openclaw_rl.tinker.consent import SERVICE_KEYS, tinker_consent


def _connect(config: Config, on_connect: OnConnect | None) -> EngineLink:
    # The SDK runs in a process of its own, behind the socket and protocol of the embedded engine.
    from openclaw_rl.engines.embedded.client import EngineClient

    return EngineClient(config.engine_socket, on_connect=on_connect)


def _run(config: Config) -> None:
    from openclaw_rl.engines.tinker import server

    server.main(config)


def _check_start(config: Config, _wait: float) -> None:
    from openclaw_rl.tinker.start_check import check_tinker

    check_tinker(config)


def _check_settings(config: Config) -> None:
    engine = config.engine
    if engine.url or engine.logprob_convention not in (None, "raw"):
        raise ConfigError(
            "engine.url and engine.logprob_convention are for a server of your own; for engine.backend tinker, the "
            "address is tinker.url (TINKER_ENDPOINT), and log-probabilities are raw. Unset it"
        )


def _check_beside_trainer(config: Config) -> None:
    if config.train.trainer != "tinker":
        raise ConfigError(
            f"engine.backend is tinker and train.trainer {config.train.trainer}: Tinker serves only what it trained, "
            "because it loads no adapter from outside. Set train.trainer to tinker, or start `openclaw-rl serve`, "
            "which does not train"
        )


SPEC = EngineSpec(
    name="tinker",
    summary="the Tinker service (docs/guides/tinker.md)",
    connect=_connect,
    run=_run,
    check_start=_check_start,
    check_settings=_check_settings,
    check_beside_trainer=_check_beside_trainer,
    consent=tinker_consent("serve"),
    section="tinker",
    settings=(*SERVICE_KEYS, "tinker.sample_from"),
    repair="docs/guides/tinker.md what it needs",
    convention="raw",
    is_service=True,
    loads_adapters=False,
)
