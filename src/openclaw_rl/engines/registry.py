"""Client and process of each `engine.backend`. Imports torch only to run the embedded engine."""

from __future__ import annotations

import asyncio

from openclaw_rl.common.sockets import check_socket_path
from openclaw_rl.engines.base import EngineLink, OnConnect
from openclaw_rl.engines.embedded.client import EngineClient
from openclaw_rl.engines.remote import (
    fireworks,
    openai_compatible,
    server_process,
    sglang_launch,
    vllm,
    vllm_launch,
)
from openclaw_rl.engines.remote.engine import RemoteEngine
from openclaw_rl.engines.remote.http_client import HEALTH_TIMEOUT, HttpClient
from openclaw_rl.engines.remote.server_process import ForeignServer
from openclaw_rl.engines.tinker import launch as tinker_launch
from openclaw_rl.settings.load import Config

_OWN_PROTOCOL = ("embedded", "tinker")
"""Engines in a process of ours, with the protocol of `engines/embedded/protocol.py` on the engine socket."""
# Seconds between two health checks of a service, which counts requests.
_SERVICE_PAUSE = 10.0


def connect_engine(config: Config, *, on_connect: OnConnect | None = None) -> EngineLink:
    """Return a client for the configured engine."""
    if config.engine.backend in _OWN_PROTOCOL:
        return EngineClient(config.engine_socket, on_connect=on_connect)
    link = _connect_remote(config, on_connect)
    link.max_silence = config.run.heartbeat_timeout
    return link


def _connect_remote(config: Config, on_connect: OnConnect | None) -> RemoteEngine:
    if config.engine.backend == "vllm":
        return vllm.connect_engine(config, on_connect=on_connect)
    if config.engine.backend == "sglang":
        return sglang_launch.connect_engine(config, on_connect=on_connect)
    if config.engine.backend == "fireworks":
        return fireworks.FireworksEngine(config, on_connect=on_connect)
    return openai_compatible.OpenAiEngine(config, on_connect=on_connect)


async def probe_engine(link: EngineLink) -> None:
    """Return when the engine answers. Raises `EngineError`. An embedded engine answers between two steps."""
    if isinstance(link, RemoteEngine):
        await link.http.check_alive()
    else:
        await link.info()


def foreign_server(config: Config) -> ForeignServer | None:
    """Return the server or the service that is the engine, if this system does not start one."""
    if config.engine.backend == "fireworks":
        cure = "Check the network, or correct fireworks.url"
        return ForeignServer(url=config.fireworks.url, cure=cure, pause=_SERVICE_PAUSE)
    if config.engine.url is not None:
        return ForeignServer(url=config.engine.url, cure="Start it, or correct engine.url")
    return None


def check_engine(config: Config, *, wait: float = HEALTH_TIMEOUT) -> None:
    """Raise `EngineError` if the engine cannot be started with these settings. Runs before any process is started.

    `wait`: seconds that an endpoint may take to answer.
    """
    if config.engine.backend == "embedded":
        check_socket_path(config.engine_socket)
    elif config.engine.backend == "tinker":
        tinker_launch.check_tinker(config)
    elif config.engine.backend == "openai":
        openai_compatible.check_endpoint(config, openai_compatible.OpenAiEngine, wait=wait)
    elif config.engine.backend == "fireworks":
        openai_compatible.check_endpoint(config, fireworks.FireworksEngine, wait=wait)
    elif config.engine.backend == "vllm" and config.engine.url is None:
        vllm_launch.check_vllm(config)
    elif config.engine.backend == "sglang" and config.engine.url is None:
        sglang_launch.check_sglang(config)


def serve(config: Config) -> None:
    """Run the engine process (the embedded engine, or a monitor of an engine program) until SIGTERM or parent death.

    Raise `ModelError` if the model cannot be served, `EngineError` if the engine cannot be started.
    """
    engine = config.engine
    if (foreign := foreign_server(config)) is not None:
        http = (
            HttpClient(foreign.url, engine.backend, api_key=engine.api_key)
            if engine.url is not None
            else None
        )
        asyncio.run(server_process.watch_server(http or fireworks.http_client(config), foreign))
    elif engine.backend == "sglang":
        sglang_launch.main(config)
    elif engine.backend == "vllm":
        vllm_launch.main(config)
    elif engine.backend == "tinker":
        from openclaw_rl.engines.tinker import server as tinker_server

        tinker_server.main(config)
    else:
        from openclaw_rl.engines.embedded import server

        server.main(config)
