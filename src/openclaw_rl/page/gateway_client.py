"""The page as a client of its own gateway: what it asks is stored, linked and judged as for any other client."""

from __future__ import annotations

from openclaw_rl.common.gateway_address import home_key, running_address
from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.load import Config
from openclaw_rl.store.db import Store


def gateway_url(config: Config) -> str:
    """Return the address of the running gateway, without a path. Raises `OpenClawError` if none runs."""
    address = running_address(config.home_dir)
    if address is None:
        raise OpenClawError("no gateway runs on this home. `openclaw-rl up` starts one")
    return address.url


def gateway_headers(store: Store) -> dict[str, str]:
    """Return the headers by which the gateway knows a program of its home, to which every version answers."""
    return {"Authorization": f"Bearer {home_key(store.secret)}", "Content-Type": "application/json"}
