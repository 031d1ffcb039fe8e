"""The embedded engine, as the registry knows it."""

from __future__ import annotations

from collections.abc import Iterable

from openclaw_rl.errors import ConfigError
from openclaw_rl.protocols import EngineLink, OnConnect
from openclaw_rl.settings.schema import Config
from openclaw_rl.settings.specs import TORCH_MODULES, EngineSpec, RequiredLibraries


def _connect(config: Config, on_connect: OnConnect | None) -> EngineLink:
    from openclaw_rl.engines.embedded.client import EngineClient

    return EngineClient(config.engine_socket, on_connect=on_connect)


def _run(config: Config) -> None:
    from openclaw_rl.engines.embedded import server

    server.main(config)


def _check_start(config: Config, _wait: float) -> None:
    from openclaw_rl.common.sockets import check_socket_path

    check_socket_path(config.engine_socket)


def _check_settings(config: Config) -> None:
    engine = config.engine
    if engine.url or engine.logprob_convention not in (None, "scaled"):
        raise ConfigError(
            "engine.url and engine.logprob_convention are for a server; the embedded engine takes neither. Unset it,"
            " or set engine.backend (--backend vllm)"
        )


def _libraries(_config: Config) -> Iterable[RequiredLibraries]:
    return (
        RequiredLibraries(
            purpose="engine.backend embedded",
            modules=(*TORCH_MODULES, "llguidance"),
            package="openclaw-rl[local]",
        ),
    )


SPEC = EngineSpec(
    name="embedded",
    summary="built in, for small models",
    connect=_connect,
    run=_run,
    check_start=_check_start,
    check_settings=_check_settings,
    libraries=_libraries,
    settings=(
        "engine.gpus",
        "engine.max_batch",
        "engine.prefill_chunk",
        "engine.prefix_cache_tokens",
        "engine.threads",
    ),
    runs_here=True,
    in_process=True,
    loads_judge=True,
    reads_states=True,
)
