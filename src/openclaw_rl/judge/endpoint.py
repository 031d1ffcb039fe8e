"""Is an endpoint one that may judge or teach, and can the rules be read? Asked before anything starts."""

from __future__ import annotations

import re
import socket
from urllib.parse import urlsplit

from openclaw_rl.config import Config, EndpointConfig
from openclaw_rl.errors import ConfigError
from openclaw_rl.judge.rules import RulesJudge

_LOOPBACK = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::")
_BASE = re.compile(r"@0$")


def check(config: Config) -> None:
    """Raises `ConfigError` when a judge or a teacher that the settings name cannot be one: before anything starts."""
    if config.judge.kind == "llm" and config.judge.path is None:
        check_endpoint("judge", config.judge, config)
    if config.judge.kind == "rules":
        RulesJudge.load(config.judge.rules_path)
    if config.teacher.wanted:
        check_endpoint("teacher", config.teacher, config)


def check_endpoint(section: str, endpoint: EndpointConfig, config: Config) -> None:
    """A judge or teacher that is the policy under training would grade or copy itself: raises `ConfigError`.

    Our own gateway may serve as one with the base only (`name@0`): any other version may be the head that is being
    trained. `section` is the setting's, for the words.
    """
    url = urlsplit(endpoint.base_url or "")
    try:
        port = url.port or (443 if url.scheme == "https" else 80)
    except ValueError:
        port = 0
    if url.scheme not in ("http", "https") or not url.hostname or not port or not endpoint.model:
        raise ConfigError(
            f"{section}.base_url: expected an http(s) URL such as http://127.0.0.1:8001/v1, and {section}.model a "
            f"name; got {endpoint.base_url!r} and {endpoint.model!r}"
        )
    own = port == config.serve.port and _same_host(url.hostname, config.serve.host)
    if own and not _BASE.search(endpoint.model):
        itself = "grade itself" if section == "judge" else "learn from itself"
        raise ConfigError(
            f"{section}.base_url {endpoint.base_url} is this system's own gateway, and {section}.model "
            f"{endpoint.model!r} is or may become the policy that is being trained: it would {itself}. "
            f"Name the base, {config.model.name}@0, or another endpoint."
        )


def _same_host(named: str, bound: str) -> bool:
    here = {*_LOOPBACK, bound.lower()}
    if bound in ("0.0.0.0", "::"):
        here |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return named.lower() in here
