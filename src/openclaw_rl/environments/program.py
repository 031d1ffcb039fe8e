"""Runs one program in a process group of its own, with a time limit, and keeps the end of its output."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from openclaw_rl.environments.leftovers import kill_processes

_TAIL_BYTES = 4096
# For output that is still in the pipe when every process has ended.
_DRAIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnd:
    """How a program ended. `code`: exit status, or minus the signal; None: it reached the limit and was killed."""

    code: int | None
    output: str  # the last characters of stdout and stderr

    @property
    def last_line(self) -> str:
        """The last line that was printed, for a reason in one line."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return lines[-1][-300:] if lines else ""


async def run_program(
    command: Sequence[str], *, folder: str, environment: Mapping[str, str], seconds: float
) -> ProgramEnd:
    """Run a program in `folder` until it ends, at most `seconds`. Afterwards none of its processes is left.

    Raises `OSError` if it cannot be started.
    """
    async with _output_tail() as (write_end, output):
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=folder,
                env=dict(environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                start_new_session=True,
            )
        finally:
            os.close(write_end)
        try:
            async with asyncio.timeout(seconds):
                code: int | None = await process.wait()
        except TimeoutError:
            code = None
        finally:
            # Not interruptible: a cancelled episode leaves no process either.
            await asyncio.shield(_kill_all(process, folder))
    return ProgramEnd(code=code, output=bytes(output).decode(errors="replace"))


async def _kill_all(process: asyncio.subprocess.Process, folder: str) -> None:
    await asyncio.to_thread(
        kill_processes, folder, process.pid if process.returncode is None else None
    )
    await process.wait()


@contextlib.asynccontextmanager
async def _output_tail() -> AsyncIterator[tuple[int, bytearray]]:
    """Yield a descriptor to write to, which the block closes, and the end of what was written there."""
    read_end, write_end = os.pipe()
    tail = bytearray()
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb")
    )

    async def read_all() -> None:
        while block := await reader.read(65536):
            tail.extend(block)
            del tail[:-_TAIL_BYTES]

    reading = asyncio.create_task(read_all())
    try:
        yield write_end, tail
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reading, _DRAIN_SECONDS)
    finally:
        reading.cancel()
        transport.close()
