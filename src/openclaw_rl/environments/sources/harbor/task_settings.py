"""Settings of a task folder (`task.toml`), in every version of the format, and what a box cannot offer of them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from openclaw_rl.environments.sources.harbor.compose_file import ComposeError, read_build_files
from openclaw_rl.errors import ConfigError
from openclaw_rl.sandbox.box_commands import VARIABLE_NAME

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])I?B?", re.IGNORECASE)
_MEBIBYTES = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class _TaskSection(BaseModel):
    """A table of the file. Fields that it does not name are for other runners, and have no effect."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class AgentSection(_TaskSection):
    """`timeout_sec`: seconds for the agent; None: no limit of the task."""

    timeout_sec: float | None = Field(None, gt=0)


class VerifierSection(_TaskSection):
    """`env`: variables of the verifier. The others say that it needs what a box does not have."""

    timeout_sec: float = Field(600.0, gt=0)
    env: dict[str, str] = {}
    environment_mode: str | None = None
    environment: dict[str, Any] | None = None
    collect: list[Any] = []


class BoxSection(_TaskSection):
    """The table `[environment]`. Sizes in MiB; `memory` and `storage` are their older names, such as "2G"."""

    build_timeout_sec: float = Field(600.0, gt=0)
    docker_image: str | None = None
    os: str = "linux"
    memory_mb: int | None = Field(None, gt=0)
    storage_mb: int | None = Field(None, gt=0)
    memory: str | int | None = None
    storage: str | int | None = None
    gpus: int | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[Any] = []
    env: dict[str, str] = {}
    healthcheck: dict[str, Any] | None = None
    workdir: str | None = None
    allow_internet: bool | None = None
    network_mode: str | None = None

    @field_validator("memory", "storage")
    @classmethod
    def _check_size(cls, value: str | int | None) -> str | int | None:
        if isinstance(value, str) and _SIZE.fullmatch(value.strip()) is None:
            raise ValueError(f"expected a size such as '512M' or '2G', got {value!r}")
        return value

    @property
    def memory_mebibytes(self) -> int | None:
        """Memory that the task asks for."""
        return self.memory_mb or _size_of(self.memory)

    @property
    def storage_mebibytes(self) -> int | None:
        """Disk space that the task asks for."""
        return self.storage_mb or _size_of(self.storage)

    @property
    def allows_network(self) -> bool:
        """Whether the task allows a network; the format's own default is yes."""
        if self.network_mode is not None:
            return self.network_mode != "no-network"
        return self.allow_internet is not False


class SolutionSection(_TaskSection):
    """`env`: variables of the reference solution."""

    env: dict[str, str] = {}


class StepSection(_TaskSection):
    """A step, an entry of `[[steps]]`: a folder below `steps/`. `min_reward`: with less, no further step is taken."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    agent: AgentSection = AgentSection()
    verifier: VerifierSection = VerifierSection()
    solution: SolutionSection = SolutionSection()
    min_reward: float | dict[str, float] | None = None
    healthcheck: dict[str, Any] | None = None


class HarborSettings(_TaskSection):
    """A whole `task.toml`. `metadata` may have `split`, `best_reward` and `unfit` (why) for this program."""

    metadata: dict[str, Any] = {}
    agent: AgentSection = AgentSection()
    verifier: VerifierSection = VerifierSection()
    environment: BoxSection = BoxSection()
    solution: SolutionSection = SolutionSection()
    steps: list[StepSection] = []
    multi_step_reward_strategy: Literal["mean", "final"] = "mean"


def read_settings(file: Path) -> HarborSettings:
    """Return the settings of a task. Raises `ConfigError`, with the file and the field."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file}: cannot be read ({error}). Expected the settings of a task in TOML"
        ) from None
    try:
        return HarborSettings.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{file}: {where}: {first['msg']}, got {first['input']!r}") from None


def list_refusals(settings: HarborSettings, folder: Path) -> list[str]:
    """Return in words what the task needs and a box of this program does not have; an empty list if nothing."""
    box = settings.environment
    verifiers = [settings.verifier, *(step.verifier for step in settings.steps)]
    definitions = folder / "environment"
    refusals: dict[str, Any] = {
        "a step waits for a service (healthcheck)": any(one.healthcheck for one in settings.steps),
        "two steps have the same name": len({one.name for one in settings.steps})
        != len(settings.steps),
        f"it is for {box.os}": box.os.lower() != "linux",
        "it needs a GPU": box.gpus,
        "it needs a TPU": box.tpu,
        "it needs MCP servers": box.mcp_servers,
        "it waits for a service (healthcheck)": box.healthcheck,
        f"it needs the image {box.docker_image}, and has no environment/Dockerfile": (
            box.docker_image and not (definitions / "Dockerfile").is_file()
        ),
        "its verifier needs an environment of its own": any(
            one.environment or one.environment_mode == "separate" for one in verifiers
        ),
        "its verifier collects from services ([[verifier.collect]])": any(
            one.collect for one in verifiers
        ),
        "it continues an earlier conversation (trajectory.json)": (
            folder / "trajectory.json"
        ).exists(),
    }
    try:
        read_build_files(definitions)
    except ComposeError as error:
        refusals[str(error)] = True
    stated = [str(settings.metadata["unfit"])] if "unfit" in settings.metadata else []
    return stated or [reason for reason, is_found in refusals.items() if is_found]


def fill_variables(table: Mapping[str, str], granted: Mapping[str, str]) -> dict[str, str]:
    """Return variables with each `${NAME}` and `${NAME:-default}` replaced by what was granted.

    Raises `ConfigError` for a variable that was not granted and has no default, and for what no variable can be.
    """

    def value_of(match: re.Match[str]) -> str:
        name, default = match.groups()
        if name not in granted and default is None:
            raise ConfigError(
                f"the task needs the variable {name}: give it with --env {name}, or --env {name}=VALUE"
            )
        return granted.get(name, default or "")

    filled = {name: _VARIABLE.sub(value_of, value) for name, value in table.items()}
    _check_variables(filled)
    return filled


def _check_variables(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        if not VARIABLE_NAME.fullmatch(name) or "\0" in value:
            raise ConfigError(
                f"the task has a variable {name[:80]!r}, whose name or value no variable can have"
            )


def _size_of(value: str | int | None) -> int | None:
    """Return a size in MiB; a number without a unit is one in MiB."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    assert match is not None
    return max(1, round(float(match[1]) * _MEBIBYTES[match[2].upper()]))
