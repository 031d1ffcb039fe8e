"""A process that plays many episodes at once, for environments that start slowly or share something, such as a browser.

It is a program of any language or Python with any libraries. Requests are JSON lines on its stdin, answers on stdout:

    {"id": 1, "play": {"episode", "task", "data", "base_url", "api_key", "model", "folder", "seconds", "replies"}}
    {"id": 1, "outcome": {"reward", "parts", "steps", "status", "reason"}}       as `REWARD_FILE` of a command
    {"id": 1, "error": "text"}                                                   the episode is void
    {"id": 1, "cancel": true}                                                    to the process; an answer is not needed
    {"id": 1, "call": 7, "box": "run", ...}                                      it asks the owner, within a request
    {"id": 1, "call": 7, "exit_code": 0, ...}                                    the answer to it, or {"error": "text"}

Answers come in any order. Other lines on stdout are ignored, because libraries print. The process ends when its stdin
does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from openclaw_rl.environments.command_source import plain_environment
from openclaw_rl.environments.leftovers import kill_processes
from openclaw_rl.environments.reward_file import parse_reward
from openclaw_rl.environments.types import (
    EnvironmentTask,
    EpisodeTicket,
    PlayLimits,
    PlayOutcome,
    void_outcome,
)
from openclaw_rl.errors import OpenClawError

log = logging.getLogger(__name__)
# For an answer after the limit; after it, the process hangs and is killed.
_GRACE_SECONDS = 10.0
# For the last words of a process.
_DRAIN_SECONDS = 1.0
_LAST_BYTES = 300
# Bytes.
_MAX_LINE = 1 << 24
CallAnswerer = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Answers what a process asks within a request. Raises `OpenClawError` with the reason if it cannot."""


class ForeignError(OpenClawError):
    """Raised if the process refused a request, ended, or did not answer in time. Nothing is known of the policy.

    `missing_module`: name of the library that its Python does not have, if that is why.
    """

    def __init__(self, message: str, missing_module: str | None = None) -> None:
        super().__init__(message)
        self.missing_module = missing_module


class ForeignProcess:
    """A process that answers requests concurrently. It is started by the first request, and again after its end."""

    def __init__(
        self, command: Sequence[str], search_path: str, granted: Mapping[str, str]
    ) -> None:
        """`command`, `search_path`, `granted`: as for `CommandRunner`."""
        self._command = command
        self._search_path = search_path
        self._granted = granted
        self._folder = ""
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._answerers: dict[int, CallAnswerer] = {}
        self._calls: dict[asyncio.Task[None], int] = {}
        self._numbers = itertools.count(1)
        self._lock = asyncio.Lock()
        self._last_words = ""

    def use_folder(self, folder: str) -> None:
        """Set the working folder of the process, which marks its children, too. It must exist."""
        self._folder = folder

    async def send_request(
        self,
        kind: str,
        body: Mapping[str, Any],
        seconds: float,
        answer_call: CallAnswerer | None = None,
    ) -> dict[str, Any]:
        """Return the answer to `{kind: body}`. Raises `ForeignError`.

        A process that does not answer within the limit, in seconds, and some more is killed. `answer_call`: answers
        what the process asks until then; what it still works on afterwards is cancelled.
        """
        process = await self._ensure_started()
        number = next(self._numbers)
        if answer_call is not None:
            self._answerers[number] = answer_call
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            await self._write_line(process, {"id": number, kind: dict(body)})
            async with asyncio.timeout(seconds + _GRACE_SECONDS):
                reply: dict[str, Any] = await answer
        except TimeoutError:
            await self.close()
            raise ForeignError(
                f"no answer within {seconds:g} s: the process hung and was killed"
            ) from None
        except asyncio.CancelledError:
            with contextlib.suppress(ForeignError):
                await asyncio.shield(self._write_line(process, {"id": number, "cancel": True}))
            raise
        finally:
            self._waiting.pop(number, None)
            await self._end_calls(number)
        if "error" in reply:
            raise ForeignError(str(reply["error"]), reply.get("missing_module"))
        return reply

    async def close(self) -> None:
        """End the process and all its children. Idempotent; a later request starts it again."""
        process = self._process
        self._process = None
        if process is not None:
            await asyncio.to_thread(
                kill_processes, self._folder, process.pid if process.returncode is None else None
            )
            await process.wait()
        if self._reading is not None:
            await self._reading
            self._reading = None

    async def _ensure_started(self) -> asyncio.subprocess.Process:
        async with self._lock:
            if self._process is not None and self._reading is not None and not self._reading.done():
                return self._process
            await self.close()
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    cwd=self._folder,
                    env=plain_environment(self._folder, self._search_path, self._granted),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    start_new_session=True,
                    limit=_MAX_LINE,
                )
            except OSError as error:
                raise ForeignError(f"{self._command[0]} cannot be started: {error}") from None
            self._reading = asyncio.create_task(self._read_answers(self._process))
            return self._process

    async def _read_answers(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        errors = asyncio.create_task(self._read_errors(process.stderr))
        # A line above the limit: the process cannot be understood any more.
        with contextlib.suppress(ValueError):
            async for line in process.stdout:
                self._take_line(process, line)
        await asyncio.wait([errors], timeout=_DRAIN_SECONDS)
        errors.cancel()
        for answer in self._waiting.values():
            if not answer.done():
                error = "the process ended"
                if self._last_words:
                    error += f": {self._last_words}"
                answer.set_result({"error": error})

    async def _read_errors(self, stream: asyncio.StreamReader) -> None:
        """Keep the last line of stderr, for the reason."""
        rest = b""
        while block := await stream.read(65536):
            rest = (rest + block)[-_LAST_BYTES:]
            lines = [
                line.strip() for line in rest.decode(errors="replace").splitlines() if line.strip()
            ]
            self._last_words = lines[-1] if lines else ""

    def _take_line(self, process: asyncio.subprocess.Process, line: bytes) -> None:
        try:
            message = json.loads(line)
            number = message["id"]
            call = message.get("call")
            answer = self._waiting.get(number)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            log.debug("ignored: %r", line[:200])
            return
        if call is not None:
            task = asyncio.create_task(self._answer_call(process, number, message))
            self._calls[task] = number
            task.add_done_callback(self._calls.pop)
        elif answer is not None and not answer.done():
            answer.set_result(message)

    async def _answer_call(
        self, process: asyncio.subprocess.Process, number: int, asked: dict[str, Any]
    ) -> None:
        """Answer what the process asks. A failure of ours is its answer; the process decides what it means."""
        answerer = self._answerers.get(number)
        try:
            if answerer is None:
                raise ForeignError("the request has ended")
            answer = await answerer(asked)
        except (OpenClawError, OSError, ValueError, KeyError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        # The process has ended, and its requests fail.
        with contextlib.suppress(ForeignError):
            await self._write_line(process, {"id": number, "call": asked["call"], **answer})

    async def _end_calls(self, number: int) -> None:
        self._answerers.pop(number, None)
        calls = [task for task, request in self._calls.items() if request == number]
        for task in calls:
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    async def _write_line(
        self, process: asyncio.subprocess.Process, body: Mapping[str, Any]
    ) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(body).encode() + b"\n")
            await process.stdin.drain()
        except OSError as error:
            raise ForeignError(f"the process ended ({error})") from None


class ForeignRunner:
    """Plays episodes in a `ForeignProcess`. Silence, a signal and a closed pipe are void."""

    def __init__(self, process: ForeignProcess) -> None:
        self._process = process

    def open_runner(self, folder: str) -> None:
        self._process.use_folder(folder)

    async def play_episode(
        self, task: EnvironmentTask, ticket: EpisodeTicket, folder: str, limits: PlayLimits
    ) -> PlayOutcome:
        """Let the process play the episode."""
        body = {
            "episode": ticket.episode,
            "task": task.id,
            "data": dict(task.data),
            "base_url": ticket.base_url,
            "api_key": ticket.api_key,
            "model": ticket.model,
            "folder": folder,
            "seconds": limits.seconds,
            "replies": limits.replies,
        }
        try:
            answer = await self._process.send_request("play", body, limits.seconds)
            return parse_reward(json.dumps(answer.get("outcome")).encode())
        except (ForeignError, ValueError) as error:
            return void_outcome(f"the process of the environment failed: {error}")

    async def close_runner(self) -> None:
        await self._process.close()
