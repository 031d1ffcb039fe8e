"""A program of a box that runs on and answers lines with lines, such as the process of a tool."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Coroutine, Iterator
from typing import Any

from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox.output_buffer import OutputBuffer

# That wait to be read.
_KEPT_LINES = 16
# Bytes.
_KEPT_ERRORS = 2000


class LineReceiver:
    """Takes a program's output and keeps its whole lines. A line of more than `limit` bytes ends the program.

    So does a program that writes on and on without being asked: reading that would cost its owner as much as it.
    """

    def __init__(self, limit: int) -> None:
        self.truncated = 0
        self.lines: deque[bytes] = deque()
        self.has_news = asyncio.Event()
        self._limit = limit
        self._rest = b""

    def add_bytes(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        retained = [line for line in lines if len(line) <= self._limit][
            : max(0, _KEPT_LINES - len(self.lines))
        ]
        self.lines.extend(retained)
        self.truncated += (
            sum(map(len, lines)) - sum(map(len, retained)) + max(0, len(self._rest) - self._limit)
        )
        # Their ends.
        self.truncated += len(lines) - len(retained)
        self._rest = self._rest[: self._limit]
        if retained:
            self.has_news.set()

    def is_full(self) -> bool:
        return self.truncated > 0


class ServiceInput:
    """Where the lines for a program are written to: a pipe, which the kind of the box attaches."""

    def __init__(self) -> None:
        self._pipe: int | None = None
        self._is_closed = False
        # The pipe is there, or takes more, or is closed.
        self._has_changed = asyncio.Event()

    @contextlib.contextmanager
    def attached_to(self, pipe: int) -> Iterator[None]:
        """Write to this pipe while the block runs. It stays the caller's."""
        os.set_blocking(pipe, False)
        self._pipe = pipe
        self._has_changed.set()
        try:
            yield
        finally:
            asyncio.get_running_loop().remove_writer(pipe)
            self._pipe = None
            self.close()

    def close(self) -> None:
        """Let writers know that the program has ended."""
        self._is_closed = True
        self._has_changed.set()

    async def write_bytes(self, data: bytes) -> None:
        """Write, and wait while the pipe is full. Raises `SandboxError` if the program has ended."""
        loop = asyncio.get_running_loop()
        left = memoryview(data)
        while left:
            self._has_changed.clear()
            if self._is_closed:
                raise SandboxError("the program has ended")
            pipe = self._pipe
            if pipe is None:
                await self._has_changed.wait()
                continue
            try:
                left = left[os.write(pipe, left) :]
            except BlockingIOError:
                loop.add_writer(pipe, self._has_changed.set)
                try:
                    await self._has_changed.wait()
                finally:
                    # Else it may be another file by now.
                    if self._pipe is not None:
                        loop.remove_writer(pipe)
            except BrokenPipeError as error:
                raise SandboxError("the program has ended") from error


class BoxService:
    """A program between its start and the end of its box. It may end before that."""

    def __init__(self, line_limit: int) -> None:
        """`line_limit`: bytes of a line that it writes; a longer one ends it."""
        self.lines = LineReceiver(line_limit)
        self.errors = OutputBuffer(_KEPT_ERRORS)
        self.input = ServiceInput()
        # None: it runs, or its box ended first.
        self.exit_code: int | None = None
        self._task: asyncio.Task[None] | None = None

    def follow(self, running: Coroutine[Any, Any, tuple[int, bool]]) -> None:
        """Follow the command that was started with `lines`, `errors` and `input`, which returns its exit status."""
        self._task = asyncio.create_task(self._wait_for_end(running))

    async def _wait_for_end(self, running: Coroutine[Any, Any, tuple[int, bool]]) -> None:
        try:
            # The box ended.
            with contextlib.suppress(SandboxError):
                self.exit_code, _ = await running
        finally:
            self.input.close()

    async def read_line(self, time_limit: float) -> bytes | None:
        """Return the next line; None if it does not come in time, or the program ends first."""
        assert self._task is not None
        loop = asyncio.get_running_loop()
        end = loop.time() + time_limit
        while not self.lines.lines:
            left = end - loop.time()
            if self._task.done() or left <= 0:
                return None
            self.lines.has_news.clear()
            news = asyncio.create_task(self.lines.has_news.wait())
            try:
                await asyncio.wait(
                    (news, self._task), timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                news.cancel()
        return self.lines.lines.popleft()

    async def ask(self, line: bytes, time_limit: float) -> bytes | None:
        """Write a line and return the next one that it writes; None as for `read_line`. What came before is skipped."""
        self.lines.lines.clear()
        try:
            async with asyncio.timeout(time_limit):
                await self.input.write_bytes(line + b"\n")
        except (SandboxError, TimeoutError):
            return None
        return await self.read_line(time_limit)

    def read_end(self, time_limit: float) -> str:
        """Return why a line did not come within the limit: what it wrote to stderr, or its exit status."""
        message = self.errors.kept_bytes().decode("utf-8", "replace").strip()[-300:]
        if not self.has_ended:
            return message or f"not within {time_limit:g} s"
        return message or (
            "its box ended" if self.exit_code is None else f"exit status {self.exit_code}"
        )

    @property
    def has_ended(self) -> bool:
        return self._task is not None and self._task.done()

    async def stop(self) -> None:
        """End it. May be called again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
