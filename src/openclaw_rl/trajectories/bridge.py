"""What can be said of the bridge's folders before its room is started."""

from __future__ import annotations

import os
from pathlib import Path

from openclaw_rl.config import Config
from openclaw_rl.durable import usable
from openclaw_rl.errors import ConfigError


def check(config: Config) -> None:
    """Raises `ConfigError` for a path to import that is not there, and for a folder that cannot be used."""
    data = config.data
    if data.path and not os.path.exists(Path(data.path).expanduser()):  # noqa: PTH110 - false where it may not look
        raise ConfigError(f"data.path {data.path}: no such file or folder. Expected trajectories to import.")
    if data.buffer_dir:
        usable("data.buffer_dir", data.buffer_dir)
    if data.rollout_dir:
        usable("data.rollout_dir", data.rollout_dir, written=False)
