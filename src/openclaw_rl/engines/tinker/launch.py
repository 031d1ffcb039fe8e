"""Checks before the engine for Tinker starts, and what is known of the model on this machine. Imports no SDK."""

from __future__ import annotations

import json
from pathlib import Path

from openclaw_rl.common.sockets import check_socket_path
from openclaw_rl.engines.remote.server_process import model_location
from openclaw_rl.errors import EngineError
from openclaw_rl.settings.load import Config
from openclaw_rl.tinker.sdk_version import check_sdk


def check_tinker(config: Config) -> None:
    """Raise `EngineError` or `ConfigError` if the engine cannot start with these settings."""
    check_socket_path(config.engine_socket)
    check_sdk()
    if not config.tinker.api_key:
        raise EngineError(
            "Tinker needs a key. Set TINKER_API_KEY (tinker.api_key) to one of the service"
        )


def known_context_length(config: Config, reported: int | None) -> int:
    """Return the tokens of a sequence: the least of `engine.max_context`, the service's number and the model's own.

    Raises `EngineError` if none is known.
    """
    numbers = [
        number
        for number in (config.engine.max_context, reported, _length_of_config(config))
        if number
    ]
    if not numbers:
        raise EngineError(
            "neither Tinker nor the model's folder says how long its context is. Set engine.max_context"
        )
    return min(numbers)


def _length_of_config(config: Config) -> int | None:
    file = Path(model_location(config.model.path)) / "config.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8")).get("max_position_embeddings")
    except (OSError, ValueError):
        return None
    return found if isinstance(found, int) and found > 0 else None
