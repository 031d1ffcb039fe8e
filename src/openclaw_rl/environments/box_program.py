"""Runs a user's program in a box from which the gateway, and nothing else, can be reached."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from openclaw_rl.environments.command_source import ticket_variables
from openclaw_rl.environments.types import EpisodeTicket
from openclaw_rl.errors import ConfigError
from openclaw_rl.sandbox.box import Box, CommandResult
from openclaw_rl.sandbox.gateway_relay import forward_gateway_port

_SYSTEM = Path("/usr")
"""Folder that every box has."""
_VENV_FILE = "pyvenv.cfg"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxAccess:
    """Access of a box, besides its task: the address of the gateway, and files of this machine (read-only)."""

    gateway: tuple[str, int] | None = None
    shown: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxProgram:
    """A program for boxes, from `read_box_program`. `shown`: path in the box -> file or folder of this machine."""

    command: Sequence[str]
    shown: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))

    def access_with(self, ticket: EpisodeTicket | None) -> BoxAccess:
        """Return what a box of the program needs. Without a ticket, it has no network."""
        return BoxAccess(gateway=_gateway_address(ticket) if ticket else None, shown=self.shown)

    async def run_in(
        self, box: Box, ticket: EpisodeTicket | None, *, cwd: str, env: Mapping[str, str], seconds: float
    ) -> CommandResult:
        """Run the program in an open box that has this access. Raises `SandboxError`, `ValueError`."""
        access = {} if ticket is None else await open_access(box, ticket)
        return await box.run(shlex.join(self.command), cwd=cwd, env={**env, **access}, time_limit=seconds)


async def open_access(box: Box, ticket: EpisodeTicket) -> dict[str, str]:
    """Open a port of the box that leads to the gateway. Return the variables with the way to the policy.

    Raises `SandboxError`.
    """
    url = await forward_gateway_port(box) + urlsplit(ticket.base_url).path
    return ticket_variables(ticket, url)


def read_box_program(words: Sequence[str], shown: Iterable[str]) -> BoxProgram:
    """Return the program of a command line. Raises `ConfigError` for what does not exist.

    Files that are words of the command are shown, and made absolute, because the program works in another folder. The
    first word without a slash is found by the PATH of the box. With an environment of Python, the installation that it
    is made from is shown.
    """
    if not words:
        raise ConfigError("no program: give it after `--`, e.g. `-- python3 my_agent.py`")
    paths = [_existing_path(name) for name in shown]
    command = [words[0] if "/" not in words[0] else str(Path(words[0]).absolute())]
    for word in words[1:]:
        is_file = Path(word).is_file() if len(word) < 1024 else False
        command.append(str(Path(word).absolute()) if is_file else word)
        paths += [Path(word).absolute()] if is_file else []
    paths += [base for path in paths if (base := _python_below(path)) is not None]
    visible = {str(path): path for path in paths if _SYSTEM not in (path, *path.parents)}
    first = Path(command[0])
    if first.is_absolute() and not any(path == first or path in first.parents for path in (*paths, _SYSTEM)):
        raise ConfigError(f"{first}: a program in a box sees /usr and what is named: add --show {first.parent}")
    return BoxProgram(command=tuple(command), shown=visible)


def _existing_path(name: str) -> Path:
    path = Path(name).absolute()
    if not path.exists():
        raise ConfigError(f"--show {name}: no such file or folder")
    return path


def _python_below(folder: Path) -> Path | None:
    """Return the folder of the Python that a virtual environment is made from; None for any other folder."""
    file = folder / _VENV_FILE
    if not file.is_file():
        return None
    pairs = (line.partition("=") for line in file.read_text(encoding="utf-8").splitlines())
    home = {name.strip(): value.strip() for name, _, value in pairs}.get("home")
    return Path(home).parent if home else None


def _gateway_address(ticket: EpisodeTicket) -> tuple[str, int]:
    parts = urlsplit(ticket.base_url)
    return parts.hostname or "127.0.0.1", parts.port or (443 if parts.scheme == "https" else 80)
