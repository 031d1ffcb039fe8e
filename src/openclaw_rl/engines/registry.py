"""Client and process of each `engine.backend`. A backend's module is imported only if it is chosen."""

from __future__ import annotations

from openclaw_rl.engines.base import EngineLink, OnConnect
from openclaw_rl.engines.remote.http_client import ANSWER, Http
from openclaw_rl.settings.load import Config


def connect(config: Config, *, on_connect: OnConnect | None = None) -> EngineLink:
    """Return a client for the configured engine."""
    if config.engine.backend == "vllm":
        from openclaw_rl.engines.remote import vllm

        return vllm.connect(config, on_connect=on_connect)
    if config.engine.backend == "sglang":
        from openclaw_rl.engines.remote import sglang_launch

        return sglang_launch.connect(config, on_connect=on_connect)
    if config.engine.backend == "openai":
        from openclaw_rl.engines.remote import openai_compatible

        return openai_compatible.connect(config, on_connect=on_connect)
    from openclaw_rl.engines.embedded.client import EngineClient

    return EngineClient(config.engine_socket, on_connect=on_connect)


def check(config: Config, *, wait: float = ANSWER) -> None:
    """Raise `EngineError` if the engine cannot be started with these settings. Runs before any process is started.

    `wait`: seconds that an endpoint may take to answer.
    """
    if config.engine.backend == "vllm" and config.engine.url is None:
        from openclaw_rl.engines.remote import vllm_launch

        vllm_launch.check(config)
    elif config.engine.backend == "sglang" and config.engine.url is None:
        from openclaw_rl.engines.remote import sglang_launch

        sglang_launch.check(config)
    elif config.engine.backend == "openai":
        from openclaw_rl.engines.remote import openai_compatible

        openai_compatible.check(config, wait=wait)


def serve(config: Config) -> None:
    """Run the engine process (the embedded engine, or a monitor of an engine program) until SIGTERM or parent death.

    Raise `ModelError` if the model cannot be served, `EngineError` if the engine cannot be started.
    """
    if config.engine.url is not None:
        from openclaw_rl.engines.remote import server_process

        server_process.watch(config, _server(config, config.engine.url))
    elif config.engine.backend == "sglang":
        from openclaw_rl.engines.remote import sglang_launch

        sglang_launch.main(config)
    elif config.engine.backend == "vllm":
        from openclaw_rl.engines.remote import vllm_launch

        vllm_launch.main(config)
    else:
        from openclaw_rl.engines.embedded import server

        server.main(config)


def _server(config: Config, url: str) -> Http:
    """Return the HTTP client for an external server, with the health check of its kind."""
    if config.engine.backend == "sglang":
        from openclaw_rl.engines.remote.sglang import Server

        return Server(url, api_key=config.engine.api_key)
    if config.engine.backend == "openai":
        from openclaw_rl.engines.remote.openai_compatible import Endpoint

        return Endpoint(url, api_key=config.engine.api_key)
    return Http(url, api_key=config.engine.api_key)
