"""Check judge and teacher settings before anything starts: endpoints, and files that the judge reads."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from openclaw_rl.errors import ConfigError
from openclaw_rl.judge import local_model
from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.render import model_folder
from openclaw_rl.settings.load import Config, EndpointConfig
from openclaw_rl.settings.validate import missing_endpoints

_LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::")


def check_judge_settings(config: Config) -> None:
    """Raise `ConfigError` or `ModelError` if the configured judge or teacher cannot be used."""
    judge = config.judge
    missing = missing_endpoints(config)
    if missing:
        raise ConfigError(missing[0])
    match judge.kind:
        case "llm" if judge.path is None:
            check_endpoint("judge", judge, config)
        case "llm":
            local_model.model_files(config)
        case "auto" | "rules":
            # The shipped rules are valid, and compiling them takes a second or two.
            if judge.rules_path is not None:
                RulesJudge.load(judge.rules_path)
            if local_model.is_configured(config):
                local_model.model_files(config)
        case "classifier" if judge.reward_source is not None:
            model_folder.check_model_name(judge.reward_source, key="judge.reward_path")
        case "plugin" if judge.reward_source is not None:
            _check_source(judge.reward_source)
    if config.teacher.wanted:
        check_endpoint("teacher", config.teacher, config)


def _check_source(path: str) -> None:
    """Raise `ConfigError` if `path` is written as a path and does not exist; a plug-in may accept other names."""
    if path.startswith(("/", "./", "../")) and not Path(path).exists():
        raise ConfigError(
            f"judge.reward_path {path}: no such file or folder, but the reward model of judge.plugin_path loads it. "
            "Give another path with --rm-checkpoint (PRM_MODEL_PATH)"
        )


def check_endpoint(section: str, endpoint: EndpointConfig, config: Config) -> None:
    """Raise `ConfigError` if the endpoint is invalid or may serve the trained policy, which would grade itself.

    This system's own gateway is accepted only with the base (`name@0`): any other version may be the head that is being
    trained. `section`: settings section, for messages.
    """
    url = urlsplit(endpoint.base_url or "")
    port = _port_of(url)
    if url.hostname is None or port is None or not endpoint.model:
        raise ConfigError(
            f"{section}.base_url: expected an http(s) URL such as http://127.0.0.1:8001/v1, and a name in "
            f"{section}.model; got {endpoint.base_url!r} and {endpoint.model!r}"
        )
    is_own_gateway = port == config.serve.port and _is_same_host(url.hostname, config.serve.host)
    if is_own_gateway and not endpoint.model.endswith("@0"):
        itself = "grade itself" if section == "judge" else "learn from itself"
        raise ConfigError(
            f"{section}.base_url {endpoint.base_url} is this system's own gateway, and {section}.model "
            f"{endpoint.model!r} is or may become the policy that is being trained: it would {itself}. "
            f"Name the base, {config.model.name}@0, or another endpoint."
        )


def _port_of(url: SplitResult) -> int | None:
    """Return the port of an http(s) URL; None if it is no such URL."""
    default_ports = {"http": 80, "https": 443}
    try:
        return url.port or default_ports.get(url.scheme)
    except ValueError:
        return None


def _is_same_host(named: str, bound: str) -> bool:
    here = {*_LOOPBACK_HOSTS, bound.lower()}
    if bound in ("0.0.0.0", "::"):
        here |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return named.lower() in here
