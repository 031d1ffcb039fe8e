"""The context length of the model, before the engine for Tinker starts. Imports no SDK."""

from __future__ import annotations

import json
from pathlib import Path

from openclaw_rl.engines.remote.server_process import model_location
from openclaw_rl.errors import EngineError
from openclaw_rl.settings.load import Config


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
        length = json.loads(file.read_text(encoding="utf-8")).get("max_position_embeddings")
    except (OSError, ValueError):
        return None
    return length if isinstance(length, int) and length > 0 else None
