"""The page as a client of its own gateway: what it asks is stored, linked and judged as for any other client."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from openclaw_rl.common.gateway_address import home_key, running_address
from openclaw_rl.common.http.blocking import open_url
from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.load import Config
from openclaw_rl.store.db import Store

# Seconds; long, for slow models.
_TIMEOUT = 300.0


def gateway_url(config: Config) -> str:
    """Return the address of the running gateway, without a path. Raises `OpenClawError` if none runs."""
    address = running_address(config.home_dir)
    if address is None:
        raise OpenClawError("no gateway runs on this home. `openclaw-rl up` starts one")
    return address.url


def gateway_headers(store: Store) -> dict[str, str]:
    """Return the headers by which the gateway knows a program of its home, to which every version answers."""
    return {"Authorization": f"Bearer {home_key(store.secret)}", "Content-Type": "application/json"}


def post_json(config: Config, store: Store, path: str, body: Mapping[str, Any]) -> Any:
    """Send a request to the gateway and return its answer. Raises `OpenClawError` with the gateway's words."""
    request = urllib.request.Request(
        gateway_url(config) + path,
        data=json.dumps(body).encode(),
        headers=gateway_headers(store),
        method="POST",
    )
    try:
        with open_url(request, timeout=_TIMEOUT) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise OpenClawError(_error_message(error)) from error
    except OSError as error:
        raise OpenClawError(f"the gateway does not answer ({error})") from error


def _error_message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the gateway answered {error.code}"
