"""Is the judge's endpoint one that may judge? Pure but for this machine's names."""

from __future__ import annotations

import re
import socket
from urllib.parse import urlsplit

from openclaw_rl.config import Config
from openclaw_rl.errors import ConfigError

_LOOPBACK = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::")
_BASE = re.compile(r"@0$")


def check_endpoint(config: Config) -> None:
    """A judge that is the policy under training would grade itself: raises `ConfigError`.

    Our own gateway may judge with the base only (`name@0`): any other version may be the head that is being trained.
    """
    url = urlsplit(config.judge.base_url or "")
    try:
        port = url.port or (443 if url.scheme == "https" else 80)
    except ValueError:
        port = 0
    if url.scheme not in ("http", "https") or not url.hostname or not port or not config.judge.model:
        raise ConfigError(
            f"judge.base_url: expected an http(s) URL such as http://127.0.0.1:8001/v1, and judge.model a name; "
            f"got {config.judge.base_url!r} and {config.judge.model!r}"
        )
    if port == config.serve.port and _same_host(url.hostname, config.serve.host) and not _is_base(config):
        raise ConfigError(
            f"judge.base_url {config.judge.base_url} is this system's own gateway, and judge.model "
            f"{config.judge.model!r} is or may become the policy that is being trained: it would grade itself. "
            f"Name the base, {config.model.name}@0, or another endpoint."
        )


def _is_base(config: Config) -> bool:
    return bool(_BASE.search(config.judge.model or ""))


def _same_host(named: str, bound: str) -> bool:
    here = {*_LOOPBACK, bound.lower()}
    if bound in ("0.0.0.0", "::"):
        here |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return named.lower() in here
