"""The check before anything starts that uses Tinker. Imports no SDK."""

from __future__ import annotations

from openclaw_rl.common.sockets import check_socket_path
from openclaw_rl.errors import EngineError
from openclaw_rl.settings.schema import Config
from openclaw_rl.tinker.sdk_version import check_sdk


def check_tinker(config: Config) -> None:
    """Raise `EngineError` or `ConfigError` if engine or trainer cannot start with these settings."""
    check_socket_path(config.engine_socket)
    check_sdk()
    if not config.tinker.api_key:
        raise EngineError(
            "Tinker needs a key. Set TINKER_API_KEY (tinker.api_key) to one of the service"
        )
