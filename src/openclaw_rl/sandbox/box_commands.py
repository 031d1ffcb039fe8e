"""Base class of the boxes of all kinds: checks of a command, and transfers as tar archives through commands."""

from __future__ import annotations

import abc
import asyncio
import re
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox.archives import check_box_path, pack_source, unpack_untrusted
from openclaw_rl.sandbox.box import MEBIBYTE, WORK_FOLDER, BoxLimits, BoxRoot, CommandResult
from openclaw_rl.sandbox.box_lease import leased_folder
from openclaw_rl.sandbox.box_service import BoxService, ServiceInput
from openclaw_rl.sandbox.output_buffer import OutputBuffer, OutputFile, OutputReceiver

BOX_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TRANSFER_SECONDS = 120.0
# An archive of many small files is larger than the files.
_ARCHIVE_OVERHEAD = 2


class CommandBox(abc.ABC):
    """A box whose kind says only how a script is run in it."""

    def __init__(self, root: BoxRoot, limits: BoxLimits) -> None:
        for path in (*root.writable, *root.read_only):
            check_box_path(path)
        self.root = root
        self.limits = limits
        self._closing = asyncio.Lock()
        self._services: list[BoxService] = []

    @abc.abstractmethod
    async def open(self) -> None: ...

    async def close(self) -> None:
        async with self._closing:
            for service in self._services:
                await service.stop()
            await self._close_box()

    @abc.abstractmethod
    async def _close_box(self) -> None:
        """Close what is open. May be called again, but not at the same time."""

    @abc.abstractmethod
    async def _run_script(
        self,
        script: str,
        *,
        time_limit: float,
        output: OutputReceiver,
        errors: OutputReceiver,
        source: Path | ServiceInput | None,
    ) -> tuple[int, bool]:
        """Run a script with a file, lines that come later, or nothing, as its standard input.

        Return its exit status and whether it timed out.
        """

    async def run(
        self,
        command: str,
        *,
        cwd: str = WORK_FOLDER,
        env: Mapping[str, str] | None = None,
        time_limit: float = 60.0,
    ) -> CommandResult:
        output = OutputBuffer(self.limits.output)
        errors = OutputBuffer(self.limits.output)
        script = write_script(command, cwd=cwd, env=env or {})
        code, timed_out = await self._run_script(
            script, time_limit=time_limit, output=output, errors=errors, source=None
        )
        return CommandResult(
            exit_code=code,
            stdout=output.kept_bytes(),
            stderr=errors.kept_bytes(),
            timed_out=timed_out,
            truncated=output.truncated + errors.truncated,
        )

    async def start_service(
        self, command: str, *, cwd: str = WORK_FOLDER, line_limit: int = MEBIBYTE
    ) -> BoxService:
        service = BoxService(line_limit)
        script = write_script(command, cwd=cwd, env={})
        running = self._run_script(
            script,
            time_limit=self.limits.lifetime,
            output=service.lines,
            errors=service.errors,
            source=service.input,
        )
        service.follow(running)
        self._services.append(service)
        # Let it begin: a box that is closed at once ends it.
        await asyncio.sleep(0)
        return service

    async def put(self, source: Path, at: str) -> None:
        target = PurePosixPath(check_box_path(at))
        with leased_folder() as folder:
            archive = folder / "archive.tar"
            is_folder = await asyncio.to_thread(pack_source, source, target.name, archive)
            await self._unpack(archive, str(target if is_folder else target.parent))

    async def get(self, at: str, to: Path) -> None:
        path = PurePosixPath(check_box_path(at))
        parent = shlex.quote(str(path.parent))
        name = shlex.quote(f"./{path.name}")
        command = (
            f"if [ -d {shlex.quote(at)} ]; then tar -C {shlex.quote(at)} -cf - .; else tar -C "
            f"{parent} -cf - {name}; fi"
        )
        with leased_folder() as folder:
            archive = folder / "archive.tar"
            await self._save_output(command, archive)
            with archive.open("rb") as file:
                await asyncio.to_thread(unpack_untrusted, file, to, self.limits.disk)

    async def save_archive(self, paths: tuple[str, ...], archive: Path) -> None:
        await self._save_output(f"tar -C / -cf - {_member_names(paths)}", archive)

    async def load_archive(self, paths: tuple[str, ...], archive: Path, below: str = "/") -> None:
        await self._unpack(archive, check_box_path(below), paths)

    async def _save_output(self, command: str, archive: Path) -> None:
        errors = OutputBuffer(1000)
        with archive.open("wb") as file:
            output = OutputFile(file, _ARCHIVE_OVERHEAD * self.limits.disk)
            try:
                await self._run_transfer(command, output, errors, None)
            finally:
                if output.is_full():
                    raise SandboxError(
                        "what is to be taken out of the box is larger than the limit `disk`"
                    )

    async def _unpack(self, archive: Path, folder: str, paths: tuple[str, ...] = ()) -> None:
        """Unpack inside the box, so that links in the archive or in the box lead nowhere else. `paths`: only these."""
        quoted = shlex.quote(folder)
        command = f"mkdir -p {quoted} && tar -C {quoted} -o -xf - {_member_names(paths)}"
        await self._run_transfer(command, None, OutputBuffer(1000), archive)

    async def _run_transfer(
        self,
        command: str,
        output: OutputReceiver | None,
        errors: OutputBuffer,
        archive: Path | None,
    ) -> None:
        script = write_script(command, cwd="/", env={})
        code, timed_out = await self._run_script(
            script,
            time_limit=_TRANSFER_SECONDS,
            output=output or OutputBuffer(0),
            errors=errors,
            source=archive,
        )
        if code:
            message = errors.kept_bytes().decode("utf-8", "replace").strip()
            reason = (
                f"not finished within {_TRANSFER_SECONDS:g} s"
                if timed_out
                else message or f"tar exited with {code}"
            )
            raise SandboxError(f"the transfer failed: {reason}")


def _member_names(paths: tuple[str, ...]) -> str:
    """Return the names of box paths in an archive of the root folder, for a shell."""
    return " ".join(shlex.quote("." + check_box_path(path)) for path in paths)


def write_script(command: str, *, cwd: str, env: Mapping[str, str]) -> str:
    """Return a shell script that sets the variables, changes to `cwd` and runs the command."""
    lines = []
    for name, value in env.items():
        if not VARIABLE_NAME.fullmatch(name) or "\0" in value:
            raise ValueError(
                f"{name[:100]!r} cannot be an environment variable: expected letters, digits, '_', no NUL byte"
            )
        lines.append(f"export {name}={shlex.quote(value)}")
    if "\0" in command:
        raise ValueError("the command has a NUL byte, which no shell accepts")
    return "\n".join([*lines, f"cd {shlex.quote(check_box_path(cwd))} || exit 126", command, ""])
