"""Client and process of the engine in the settings, by its spec (`settings/specs.py`)."""

from __future__ import annotations

from openclaw_rl.engines.remote.engine import RemoteEngine
from openclaw_rl.engines.remote.http_client import HEALTH_TIMEOUT
from openclaw_rl.protocols import EngineLink, OnConnect
from openclaw_rl.settings.load import Config
from openclaw_rl.settings.registry import engine_spec


def connect_engine(config: Config, *, on_connect: OnConnect | None = None) -> EngineLink:
    """Return a client for the configured engine."""
    link = engine_spec(config).connect(config, on_connect)
    if isinstance(link, RemoteEngine):
        link.max_silence = config.run.heartbeat_timeout
    return link


async def probe_engine(link: EngineLink) -> None:
    """Return when the engine answers. Raises `EngineError`.

    A server is asked at its health path; an engine with the protocol of the embedded one answers between two steps.
    """
    if isinstance(link, RemoteEngine):
        await link.http.check_alive()
    else:
        await link.info()


def check_engine(config: Config, *, wait: float = HEALTH_TIMEOUT) -> None:
    """Raise `EngineError` if the engine cannot start with these settings, before any process is started.

    `wait`: seconds that an endpoint may take to answer.
    """
    engine_spec(config).check_start(config, wait)


def serve(config: Config) -> None:
    """Run the engine process (the engine, or a monitor of its server) until SIGTERM or parent death.

    Raise `ModelError` if the model cannot be served, `EngineError` if the engine cannot be started.
    """
    engine_spec(config).run(config)
