"""Which engine is meant by `engine.backend`: its client, and its room. Each is imported only when it is chosen."""

from __future__ import annotations

from openclaw_rl.config import Config
from openclaw_rl.engines.base import EngineLink, OnConnect
from openclaw_rl.engines.http import ANSWER, Http


def connect(config: Config, *, on_connect: OnConnect | None = None) -> EngineLink:
    """The gateway's side of the engine that the settings name."""
    if config.engine.backend == "vllm":
        from openclaw_rl.engines import vllm

        return vllm.connect(config, on_connect=on_connect)
    if config.engine.backend == "sglang":
        from openclaw_rl.engines import sglang_program

        return sglang_program.connect(config, on_connect=on_connect)
    if config.engine.backend == "openai":
        from openclaw_rl.engines import openai

        return openai.connect(config, on_connect=on_connect)
    from openclaw_rl.engines.client import EngineClient

    return EngineClient(config.engine_socket, on_connect=on_connect)


def check(config: Config, *, wait: float = ANSWER) -> None:
    """Raises `EngineError` when the engine cannot be started as the settings say: before anything else is.

    `wait`: seconds that an endpoint may take to answer.
    """
    if config.engine.backend == "vllm" and config.engine.url is None:
        from openclaw_rl.engines import vllm_program

        vllm_program.check(config)
    elif config.engine.backend == "sglang" and config.engine.url is None:
        from openclaw_rl.engines import sglang_program

        sglang_program.check(config)
    elif config.engine.backend == "openai":
        from openclaw_rl.engines import openai

        openai.check(config, wait=wait)


def serve(config: Config) -> None:
    """The engine's room: be the engine, or keep the program that is, until SIGTERM or until the parent dies.

    Raises `ModelError` when the model cannot be served, `EngineError` when the engine cannot be started.
    """
    if config.engine.url is not None:
        from openclaw_rl.engines import program

        program.watch(config, _server(config, config.engine.url))
    elif config.engine.backend == "sglang":
        from openclaw_rl.engines import sglang_program

        sglang_program.main(config)
    elif config.engine.backend == "vllm":
        from openclaw_rl.engines import vllm_program

        vllm_program.main(config)
    else:
        from openclaw_rl.engines import embedded_server

        embedded_server.main(config)


def _server(config: Config, url: str) -> Http:
    """A server that runs elsewhere, with the sign of life that its kind has."""
    if config.engine.backend == "sglang":
        from openclaw_rl.engines.sglang import Server

        return Server(url, api_key=config.engine.api_key)
    if config.engine.backend == "openai":
        from openclaw_rl.engines.openai import Endpoint

        return Endpoint(url, api_key=config.engine.api_key)
    return Http(url, api_key=config.engine.api_key)
