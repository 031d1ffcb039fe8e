"""Client and process of each `engine.backend`. A backend's module is imported only if it is chosen."""

from __future__ import annotations

from openclaw_rl.engines.base import EngineLink, OnConnect
from openclaw_rl.engines.remote.http_client import HEALTH_TIMEOUT, HttpClient
from openclaw_rl.settings.load import Config


def connect_engine(config: Config, *, on_connect: OnConnect | None = None) -> EngineLink:
    """Return a client for the configured engine."""
    if config.engine.backend == "vllm":
        from openclaw_rl.engines.remote import vllm

        return vllm.connect_engine(config, on_connect=on_connect)
    if config.engine.backend == "sglang":
        from openclaw_rl.engines.remote import sglang_launch

        return sglang_launch.connect_engine(config, on_connect=on_connect)
    if config.engine.backend == "openai":
        from openclaw_rl.engines.remote import openai_compatible

        return openai_compatible.connect_engine(config, on_connect=on_connect)
    from openclaw_rl.engines.embedded.client import EngineClient

    return EngineClient(config.engine_socket, on_connect=on_connect)


def check_engine(config: Config, *, wait: float = HEALTH_TIMEOUT) -> None:
    """Raise `EngineError` if the engine cannot be started with these settings. Runs before any process is started.

    `wait`: seconds that an endpoint may take to answer.
    """
    if config.engine.backend == "vllm" and config.engine.url is None:
        from openclaw_rl.engines.remote import vllm_launch

        vllm_launch.check_vllm(config)
    elif config.engine.backend == "sglang" and config.engine.url is None:
        from openclaw_rl.engines.remote import sglang_launch

        sglang_launch.check_sglang(config)
    elif config.engine.backend == "openai":
        from openclaw_rl.engines.remote import openai_compatible

        openai_compatible.check_endpoint(config, wait=wait)


def serve(config: Config) -> None:
    """Run the engine process (the embedded engine, or a monitor of an engine program) until SIGTERM or parent death.

    Raise `ModelError` if the model cannot be served, `EngineError` if the engine cannot be started.
    """
    if config.engine.url is not None:
        from openclaw_rl.engines.remote import server_process

        server_process.watch_server(config, _external_server(config, config.engine.url))
    elif config.engine.backend == "sglang":
        from openclaw_rl.engines.remote import sglang_launch

        sglang_launch.main(config)
    elif config.engine.backend == "vllm":
        from openclaw_rl.engines.remote import vllm_launch

        vllm_launch.main(config)
    else:
        from openclaw_rl.engines.embedded import server

        server.main(config)


def _external_server(config: Config, url: str) -> HttpClient:
    """Return the HTTP client for an external server, with the health check of its kind."""
    if config.engine.backend == "sglang":
        from openclaw_rl.engines.remote.sglang import SglangHttpClient

        return SglangHttpClient(url, api_key=config.engine.api_key)
    if config.engine.backend == "openai":
        from openclaw_rl.engines.remote.openai_compatible import OpenAiHttpClient

        return OpenAiHttpClient(url, api_key=config.engine.api_key)
    return HttpClient(url, api_key=config.engine.api_key)
