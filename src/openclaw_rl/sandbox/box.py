"""Interface of a box: a place with its own files, processes and limits, in which the commands of a model run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from openclaw_rl.sandbox.box_service import BoxService
from openclaw_rl.sandbox.root_layers import LayeredRoot

MEBIBYTE = 2**20
WORK_FOLDER = "/work"
HOME_FOLDER = "/home/agent"
GATEWAY_FOLDER = "/run/gateway"
GATEWAY_SOCKET = f"{GATEWAY_FOLDER}/gateway.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxLimits:
    """Limits of one box. Which of them hold on this machine: `openclaw-rl doctor --sandbox`."""

    memory: int = 1024 * MEBIBYTE
    """Bytes of all processes and of the files that they write; without cgroups, of each process."""
    processes: int = 256
    disk: int = 512 * MEBIBYTE
    """Bytes of each writable folder, and of what is taken out of a box."""
    shared_memory: int = 64 * MEBIBYTE
    """Bytes of /dev/shm."""
    output: int = MEBIBYTE
    """Bytes that are kept of each output stream of a command: the first and the last half."""
    open_files: int = 1024
    """Open files of each process."""
    cpu_seconds: int = 3600
    """Seconds of processor time of each process."""
    lifetime: float = 6 * 3600.0
    """Seconds after which the box is closed, whatever runs in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRoot:
    """Files of a box. Everything outside of `writable` is read-only.

    `system`: folder with a root file system (bubblewrap); None: the programs of this machine (/usr), without its data.
    `layers`: a root that was built, in place of both; its own content of `writable` folders can be changed.
    `image`: image of a container. `writable`: absolute folders, empty at first. `gateway`: host and port of the only
    server that the box may reach, at `GATEWAY_SOCKET` in the box; None: no network. `user_id`: user inside of the box.
    """

    system: Path | None = None
    layers: LayeredRoot | None = None
    image: str | None = None
    writable: tuple[str, ...] = (WORK_FOLDER,)
    read_only: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))
    """Path in the box -> file or folder of this machine."""
    gateway: tuple[str, int] | None = None
    user_id: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """End of a command. Its exit status and output come from the box: a model can forge them in its own box.

    `exit_code`: 128 + n after signal n. `timed_out`: its process group was killed. `truncated`: bytes left out of
    the middle of the outputs.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: int = 0


class Box(Protocol):
    """A box between `open` and `close`. Commands may run at the same time; files and processes stay between them."""

    async def open(self) -> None:
        """Start the box. Raises `SandboxError` with the reason and the cure if this machine does not allow it."""
        ...

    async def run(
        self,
        command: str,
        *,
        cwd: str = WORK_FOLDER,
        env: Mapping[str, str] | None = None,
        time_limit: float = 60.0,
    ) -> CommandResult:
        """Run a shell command; after `time_limit` seconds, kill it. Raises `BoxLost` if the box has ended."""
        ...

    async def start_service(
        self, command: str, *, cwd: str = WORK_FOLDER, line_limit: int = MEBIBYTE
    ) -> BoxService:
        """Start a shell command that is asked by lines, until the box is closed. What it was is known by its end."""
        ...

    async def put(self, source: Path, at: str) -> None:
        """Copy a file or the content of a folder of this machine to `at` in the box. Links are copied as links."""
        ...

    async def get(self, at: str, to: Path) -> None:
        """Copy a file or a folder of the box to the new path `to`: regular files and folders, no links or devices.

        Raises `SandboxError` if `to` exists, if `at` does not, or if it is larger than `BoxLimits.disk`.
        """
        ...

    async def save_archive(self, paths: tuple[str, ...], archive: Path) -> None:
        """Write `paths` of the box to a tar file, unread and untrusted, for `load_archive` of another box."""
        ...

    async def load_archive(self, paths: tuple[str, ...], archive: Path, below: str = "/") -> None:
        """Unpack `paths`, and nothing else, of such a tar file, below a folder inside the box."""
        ...

    async def close(self) -> None:
        """End all processes of the box and remove its files. May be called again, and before `open`."""
        ...
