"""Tools in Python: a box with a process that answers calls, for as long as an episode."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from openclaw_rl.environments.foreign import tool_worker
from openclaw_rl.errors import OpenClawError
from openclaw_rl.sandbox.box import WORK_FOLDER, Box, BoxRoot, CommandResult
from openclaw_rl.sandbox.box_kinds import make_box
from openclaw_rl.sandbox.box_service import BoxService
from openclaw_rl.settings.schema_sandbox import SandboxConfig

_FOLDER = "/tmp/tools"
# After the limit of a call, until its process counts as hanging.
_HARD_SECONDS = 3.0
_START_SECONDS = 60.0
_NO_PYTHON = 127
_READY = b"ready"
# Bytes of one answer.
_MAX_ANSWER = 16 * 2**20


class ToolBroken(OpenClawError):
    """Raised if a tool failed for a reason that is not the model's. The episode is void."""


class ToolMissing(ToolBroken):
    """Raised if a program or package that a tool needs is not on this machine: nothing is known of the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxTools:
    """Code of a box. `modules`: in order. `functions`: tool -> number of its module, its function's name."""

    modules: Sequence[str] = ()
    functions: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    has_interpreter: bool = False

    def as_json(self) -> str:
        tools = {name: list(place) for name, place in self.functions.items()}
        return json.dumps(
            {"modules": list(self.modules), "tools": tools, "interpreter": self.has_interpreter}
        )


class ToolBox:
    """One box with one process, opened by its first call or `open_early`. `files`: of the work folder at the start."""

    def __init__(self, sandbox: SandboxConfig, tools: BoxTools, files: Mapping[str, str]) -> None:
        self._sandbox = sandbox
        self._tools = tools
        self._files = files
        self._box: Box | None = None
        self._process: BoxService | None = None
        self._opening: asyncio.Task[Box] | None = None

    def open_early(self) -> None:
        """Begin to open the box, so that its first call need not wait. A failure is raised by that call."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())

    async def open_box(self) -> Box:
        """Return the box, opened. Raises `SandboxError`, and `ToolBroken` if the box has no Python."""
        self.open_early()
        assert self._opening is not None
        return await asyncio.shield(self._opening)

    async def _open(self) -> Box:
        box = self._box = make_box(self._sandbox, BoxRoot())
        await box.open()
        script = _start_script(self._tools, self._files)
        process = self._process = await box.start_service(script, cwd="/", line_limit=_MAX_ANSWER)
        if await process.read_line(_START_SECONDS) != _READY:
            if process.exit_code == _NO_PYTHON:
                raise ToolMissing(
                    "the box of the tools has no python3: install your system's package `python3`"
                )
            raise ToolBroken(
                f"the box of the tools could not be prepared: {process.read_end(_START_SECONDS)}"
            )
        return box

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], seconds: float, characters: int
    ) -> tuple[str, bool]:
        """Return the text of the result, and whether it is an error that the model is shown.

        An interpreter that hangs or ends is the model's doing: it gets a new box. Raises `ToolBroken` for other tools.
        """
        await self.open_box()
        assert self._process is not None
        request = {
            "tool": name,
            "arguments": dict(arguments),
            "seconds": seconds,
            "characters": characters,
        }
        line = await self._process.ask(json.dumps(request).encode(), seconds + _HARD_SECONDS)
        answer = _parse_answer(line)
        if "error" in answer:
            return str(answer["error"])[: 2 * characters], True
        if "result" in answer:
            return str(answer["result"])[: 2 * characters], False
        reason = f"did not end within {seconds:g} s"
        if answer.get("broken"):
            reason = answer["broken"]
        elif line is not None or self._process.has_ended:
            reason = "its process ended"
        if not self._tools.has_interpreter:
            raise ToolBroken(f"tool {name}: {reason}")
        await self.close()
        return (
            f"error: the code {reason}. The interpreter was started again: its variables and files are as at first",
            True,
        )

    async def check_code(self, seconds: float) -> None:
        """Raise `ToolBroken` if the code of the tools fails or hangs as it is loaded. `seconds`: limit of a call."""
        await self.open_box()
        assert self._process is not None
        # As the first call has.
        seconds += _HARD_SECONDS
        line = await self._process.ask(json.dumps({"tool": None}).encode(), seconds)
        answer = _parse_answer(line)
        if "result" not in answer:
            default = f"the code of the tools ended, or did not load in {seconds:g} s"
            raise ToolBroken(answer.get("broken") or default)

    async def close(self) -> None:
        """Close the box. The next call opens another."""
        opening = self._opening
        self._opening = None
        if opening is not None:
            opening.cancel()
            await asyncio.wait((opening,))
            if not opening.cancelled():
                # Marked as seen: nobody waits for the box any more.
                opening.exception()
        box = self._box
        self._box = None
        self._process = None
        if box is not None:
            await box.close()


def read_words(result: CommandResult) -> str:
    """Return the last line that a command wrote to stderr, for a reason: of a traceback, the error."""
    lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][-300:] if lines else f"exit status {result.exit_code}"


def write_files(files: Mapping[str, str], folder: str = WORK_FOLDER) -> str:
    """Return a shell script that writes texts below a folder of a box."""
    lines = []
    for name, text in files.items():
        path = PurePosixPath(folder) / name
        lines.append(
            f"[ -d {shlex.quote(str(path.parent))} ] || mkdir -p {shlex.quote(str(path.parent))} || exit 1"
        )
        # A builtin of the shell: it starts no process, and takes texts of any length.
        lines.append(f"printf %s {shlex.quote(text)} >{shlex.quote(str(path))} || exit 1")
    return "\n".join(lines)


def _start_script(tools: BoxTools, files: Mapping[str, str]) -> str:
    worker = Path(tool_worker.__file__).read_text(encoding="utf-8")
    script = write_files({"worker.py": worker, "setup.json": tools.as_json()}, _FOLDER)
    return "\n".join(
        (
            f"command -v python3 >/dev/null || exit {_NO_PYTHON}",
            script,
            write_files(files),
            f"cd {WORK_FOLDER} || exit 1",
            f"echo {_READY.decode()}",
            f"exec python3 -I {_FOLDER}/worker.py {_FOLDER}/setup.json",
        )
    )


def _parse_answer(line: bytes | None) -> dict[str, Any]:
    try:
        answer = json.loads(line or b"")
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}
