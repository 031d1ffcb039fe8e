"""Reads `environment/docker-compose.yaml` of a task that has one service: how it is built, and its variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openclaw_rl.settings.strict_yaml import read_yaml

_NAMES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
# The runner's own values, such as the folder of the Dockerfile.
_OWN_CONTEXTS = frozenset({"${CONTEXT_DIR}", "$CONTEXT_DIR", "./", "."})
_NO_EFFECT = frozenset(
    {"command", "container_name", "cpus", "deploy", "entrypoint", "expose", "extra_hosts", "healthcheck", "hostname",
     "image", "init", "labels", "logging", "mem_limit", "memswap_limit", "platform", "ports", "pull_policy", "restart",
     "shm_size", "stdin_open", "stop_grace_period", "tty", "user"}
)  # fmt: skip
_WITH_EFFECT = frozenset({"build", "environment", "volumes", "working_dir"})
_BUILD_KEYS = frozenset({"args", "context", "dockerfile", "tags", "platforms"})


class ComposeError(Exception):
    """A compose file that needs what a box does not have. The message says what, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFiles:
    """Files and values of a build. `context`: the folder of what is copied; `dockerfile`: below it, and may be missing.

    `arguments`: values for ARG. `variables`: of every command. `cwd`: working folder, if it is not the Dockerfile's.
    """

    context: Path
    dockerfile: str = "Dockerfile"
    arguments: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None


def read_build_files(environment: Path) -> BuildFiles:
    """Return what `environment` of a task is built from. Raises `ComposeError`."""
    file = next((environment / name for name in _NAMES if (environment / name).is_file()), None)
    if file is None:
        _check_place(environment, environment / "Dockerfile", "Dockerfile")
        return BuildFiles(context=environment)
    _check_place(environment, file, file.name)
    try:
        content = read_yaml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ComposeError(f"{file.name} cannot be read ({error})") from None
    services = content.get("services") if isinstance(content, dict) else None
    if not isinstance(services, dict) or not services:
        raise ComposeError(f"{file.name} has no services")
    if len(services) > 1:
        raise ComposeError(
            f"it needs several containers ({file.name}: {', '.join(map(str, services))})"
        )
    service = next(iter(services.values())) or {}
    if not isinstance(service, dict):
        raise ComposeError(f"{file.name}: expected a mapping for the service")
    return _read_service(environment, file.name, service)


def _read_service(environment: Path, name: str, service: Mapping[str, Any]) -> BuildFiles:
    _check_keys(service, _NO_EFFECT | _WITH_EFFECT, name)
    _check_volumes(service.get("volumes") or [], name)
    build = service.get("build")
    if build is None and not (environment / "Dockerfile").is_file():
        raise ComposeError(f"{name} needs the image {str(service.get('image'))[:100]}")
    settings = build if isinstance(build, dict) else {"context": build or "."}
    _check_keys(settings, _BUILD_KEYS, f"{name}: build")
    place = str(settings.get("context") or ".")
    context = environment if place in _OWN_CONTEXTS else environment / place
    if not context.resolve().is_relative_to(environment.resolve()) or not context.is_dir():
        raise ComposeError(f"{name}: build.context {place} is no folder below environment/")
    dockerfile = str(settings.get("dockerfile") or "Dockerfile")
    _check_place(environment, context / dockerfile, f"{name}: build.dockerfile {dockerfile}")
    return BuildFiles(
        context=context,
        dockerfile=dockerfile,
        arguments=_read_pairs(settings.get("args"), name),
        variables=_read_pairs(service.get("environment"), name),
        cwd=service.get("working_dir"),
    )


def _check_place(environment: Path, file: Path, name: str) -> None:
    """Raises `ComposeError` for a file outside of `environment`, also by a link."""
    if not file.resolve().is_relative_to(environment.resolve()):
        raise ComposeError(f"{name} is no file below environment/")


def _check_keys(table: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    unknown = sorted(set(map(str, table)) - known)
    if unknown:
        raise ComposeError(f"{where} needs what a box does not have: {', '.join(unknown)}")


def _check_volumes(volumes: Sequence[Any], where: str) -> None:
    for volume in volumes:
        # Harbor's own folders for logs.
        if not str(volume).startswith("${HOST_"):
            raise ComposeError(f"{where} needs the volume {str(volume)[:100]}")


def _read_pairs(value: Any, name: str) -> dict[str, str]:
    """Return variables of a mapping or of a list of `NAME=VALUE`. The runner's own values, `${...}`, are left out."""
    if isinstance(value, list):
        value = dict(str(one).partition("=")[::2] for one in value)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ComposeError(f"{name}: expected variables, got {str(value)[:100]}")
    pairs = {str(key): "" if one is None else str(one) for key, one in value.items()}
    return {key: one for key, one in pairs.items() if not one.startswith("${")}
