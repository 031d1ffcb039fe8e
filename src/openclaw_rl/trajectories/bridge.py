"""What can be said of the bridge's folders before its room is started."""

from __future__ import annotations

from pathlib import Path

from openclaw_rl.config import Config
from openclaw_rl.errors import ConfigError


def check(config: Config) -> None:
    """Raises `ConfigError` for a path to import that is not there, and for a folder that is a file."""
    data = config.data
    if data.path and not Path(data.path).expanduser().exists():
        raise ConfigError(f"data.path {data.path}: no such file or folder. Expected trajectories to import.")
    for key in ("buffer_dir", "rollout_dir"):
        given = getattr(data, key)
        if given and Path(given).expanduser().exists() and not Path(given).expanduser().is_dir():
            raise ConfigError(f"data.{key} {given}: this is a file. Expected a folder.")
