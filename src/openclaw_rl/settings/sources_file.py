"""Sources of the settings of the running system, in a file of its home: the page shows where each value came from."""

from __future__ import annotations

import json
from collections.abc import Mapping

from openclaw_rl.settings.load import Config

FILE_NAME = "setting_sources.json"


def write_sources(config: Config, sources: Mapping[str, str]) -> None:
    """Write the source of each setting that is not the default. Values are not written: some are secret."""
    path = config.home_dir / FILE_NAME
    path.write_text(json.dumps(dict(sources), indent=1), encoding="utf-8")


def read_sources(config: Config) -> dict[str, str]:
    """Return the sources, by key; nothing if the file is missing or damaged."""
    try:
        data = json.loads((config.home_dir / FILE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {str(key): str(source) for key, source in data.items()}
