"""Runs a user's program in a box from which the gateway, and nothing else, can be reached."""

from __future__ import annotations

import os
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
        self,
        box: Box,
        ticket: EpisodeTicket | None,
        *,
        cwd: str,
        env: Mapping[str, str],
        seconds: float,
    ) -> CommandResult:
        """Run the program in an open box that has this access. Raises `SandboxError`, `ValueError`."""
        access = {} if ticket is None else await open_access(box, ticket)
        return await box.run(
            shlex.join(self.command), cwd=cwd, env={**env, **access}, time_limit=seconds
        )


async def open_access(box: Box, ticket: EpisodeTicket) -> dict[str, str]:
    """Open a port of the box that leads to the gateway. Return the variables with the way to the policy.

    Raises `SandboxError`.
    """
    url = await forward_gateway_port(box) + urlsplit(ticket.base_url).path
    return ticket_variables(ticket, url)


def read_box_program(arguments: Sequence[str], shown: Iterable[str]) -> BoxProgram:
    """Return the program of a command line. Raises `ConfigError` for what does not exist.

    Files that are words of the command are shown, and made absolute, because the program works in another folder. The
    first word without a slash is found by the PATH of the box. With an environment of Python, the installation that it
    is made from is shown.
    """
    if not arguments:
        raise ConfigError("no program: give it after `--`, e.g. `-- python3 my_agent.py`")
    paths = [_existing_path(name) for name in shown]
    program, *words = arguments
    files = {word: _absolute_path(word) for word in words if _is_file(word)}
    paths += files.values()
    command = [str(_absolute_path(program)) if "/" in program else program]
    command += [str(files.get(word, word)) for word in words]
    paths += filter(None, map(_python_below, list(paths)))
    visible = {str(path): path for path in paths if not _is_of_system(path)}
    for path in visible.values():
        _refuse_broad_folder(path)
    _check_visible(Path(command[0]), paths)
    return BoxProgram(command=tuple(command), shown=visible)


def _check_visible(program: Path, paths: Sequence[Path]) -> None:
    """Raise `ConfigError` if a box does not have the program. A name without a folder is for the PATH of the box."""
    if not program.is_absolute() or _is_of_system(program):
        return
    if not any(program.is_relative_to(path) for path in paths):
        raise ConfigError(
            f"{program}: a program in a box sees /usr and what is named: add --show {program.parent}"
        )


def _absolute_path(name: str) -> Path:
    """Return the path without "..", which no path in a box has, and with its links, which Python environments need."""
    return Path(os.path.abspath(name))  # noqa: PTH100


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except OSError:
        # E.g. longer than a name may be.
        return False


def _is_of_system(path: Path) -> bool:
    """Return whether every box has the path: below /usr, or below a link to there, such as /bin."""
    return any(_SYSTEM in (one, *one.parents) for one in (path, path.resolve()))


def _refuse_broad_folder(path: Path) -> None:
    """Raise `ConfigError` for a folder that holds the user's home, and with it keys that no model should read."""
    home = Path.home()
    if home.resolve().is_relative_to(path.resolve()):
        raise ConfigError(
            f"a program in a box would see {path}, which holds the home folder {home}: show what it needs"
        )


def _existing_path(name: str) -> Path:
    path = _absolute_path(name)
    if not path.exists():
        raise ConfigError(f"--show {name}: no such file or folder")
    return path


def _python_below(folder: Path) -> Path | None:
    """Return the folder of the Python that a virtual environment is made from; None for any other folder."""
    file = folder / _VENV_FILE
    if not file.is_file():
        return None
    home = ""
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "home":
            home = value.strip()
    return Path(home).resolve().parent if home else None


def _gateway_address(ticket: EpisodeTicket) -> tuple[str, int]:
    parts = urlsplit(ticket.base_url)
    return parts.hostname or "127.0.0.1", parts.port or (443 if parts.scheme == "https" else 80)
