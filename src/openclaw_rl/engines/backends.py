"""Which engine is meant by `engine.backend`: its client, and its room. Each is imported only when it is chosen."""

from __future__ import annotations

from openclaw_rl.config import Config
from openclaw_rl.engines.base import EngineLink, OnConnect


def connect(config: Config, *, on_connect: OnConnect | None = None) -> EngineLink:
    """The gateway's side of the engine that the settings name."""
    from openclaw_rl.engines.client import EngineClient

    return EngineClient(config.engine_socket, on_connect=on_connect)


def serve(config: Config) -> None:
    """The engine's room: be the engine, or keep the program that is, until SIGTERM or until the parent dies.

    Raises `ModelError` when the model cannot be served, `EngineError` when the engine cannot be started.
    """
    from openclaw_rl.engines import embedded_server

    embedded_server.main(config)
