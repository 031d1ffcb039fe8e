"""The policy versions of a home, read before anything runs on it."""

from __future__ import annotations

from openclaw_rl.common.gateway_address import home_key
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.load import Config
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies


def read_home_key(config: Config) -> str:
    """Return the key with which a command on the home asks its gateway for any version."""
    with Store.open(config.store_path, create=False) as store:
        return home_key(store.secret)


def check_version_exists(config: Config, version: int) -> None:
    """Raise `ConfigError` if the home has no policy version of this number."""
    newest = 0
    if config.store_path.exists():
        with Store.open(config.store_path, create=False) as store, store.read() as conn:
            if policies.get(conn, version) is not None:
                return
            newest = policies.next_version(conn) - 1
    raise ConfigError(
        f"version {version} does not exist; the newest is {newest}. `openclaw-rl policies list` shows them"
    )
