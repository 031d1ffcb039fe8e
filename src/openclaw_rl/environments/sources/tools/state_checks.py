"""Checks that need a box: a file or a database that the tools left, and checkers in Python.

The work folder goes from the box of the tools to a fresh one unread; there, no process of the episode is alive.
"""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openclaw_rl.common.assets import ASSETS
from openclaw_rl.environments.sources.tools.answer_checks import (
    DatabaseCheck,
    FileCheck,
    PythonCheck,
    StateCheck,
    equal_json,
)
from openclaw_rl.environments.sources.tools.call_matching import CallMade
from openclaw_rl.environments.sources.tools.tool_box import ToolBroken, read_words, write_files
from openclaw_rl.sandbox.box import WORK_FOLDER, Box, BoxRoot, CommandResult
from openclaw_rl.sandbox.box_kinds import make_box
from openclaw_rl.settings.schema_sandbox import SandboxConfig

_FOLDER = "/tmp/check"
_ISOLATION = (ASSETS / "sandbox" / "isolation.py").read_text(encoding="utf-8")
_QUERY_SECONDS = 30.0
# Bytes; more is more output than a box returns whole.
_MAX_FILE = 1 << 20
_QUERY = """
import json, sqlite3, sys, urllib.parse
path, query = json.load(open(sys.argv[1]))
database = sqlite3.connect("file:" + urllib.parse.quote(path) + "?mode=ro", uri=True)
print(json.dumps([list(row) for row in database.execute(query)]))
"""
# The mark is nowhere but in this process, which no other one can look into.
_CHECKER = """
import json, os, sys
folder, source = os.path.split(sys.argv[1])
sys.path.insert(0, folder)
import isolation
isolation.protect_process()
sys.path.pop(0)
given = json.load(open(sys.argv[1]))
for name in (source, "program.py", "isolation.py"):
    os.unlink(os.path.join(folder, name))
mark = given.pop("mark")
space = {"__name__": "checker", "run_code": isolation.run_code}
exec(compile(given["code"], "checker.py", "exec"), space)
found = space["check"](given["answer"], given["calls"], given["files"])
print("\\n" + mark + json.dumps(float(found)))
"""


class StateVerifier:
    """Checks of one episode. `archive`: file to copy the work folder through; `used`: box of the tools, if any."""

    def __init__(self, sandbox: SandboxConfig, used: Box | None, archive: Path) -> None:
        self._sandbox = sandbox
        self._used = used
        self._archive = archive
        self._fresh: Box | None = None

    async def score_state(self, check: StateCheck, answer: str, calls: Sequence[CallMade]) -> float:
        """Return 0 to 1. Raises `ToolBroken` if the check itself failed, and `SandboxError`."""
        fresh = await self._open_fresh()
        if isinstance(check, FileCheck):
            return await _score_file(fresh, check)
        if isinstance(check, DatabaseCheck):
            return await _score_query(fresh, check)
        return await _score_python(fresh, check, answer, calls)

    async def close(self) -> None:
        if self._fresh is not None:
            await self._fresh.close()

    async def _open_fresh(self) -> Box:
        if self._fresh is None:
            if self._used is not None:
                await self._used.save_archive((WORK_FOLDER,), self._archive)
                await self._used.close()
            self._fresh = make_box(self._sandbox, BoxRoot())
            await self._fresh.open()
            if self._used is not None:
                await self._fresh.load_archive((WORK_FOLDER,), self._archive)
        return self._fresh


async def _score_file(box: Box, check: FileCheck) -> float:
    path = shlex.quote(check.path)
    result = await box.run(
        f"[ -f {path} ] && [ ! -L {path} ] && head -c {_MAX_FILE + 1} {path}",
        time_limit=_QUERY_SECONDS,
    )
    try:
        content = json.loads(result.stdout)
    except (ValueError, RecursionError):
        return 0.0
    return float(equal_json(_without(content, check.ignore), _without(check.value, check.ignore)))


def _without(value: Any, fields: Sequence[str]) -> Any:
    return (
        {name: one for name, one in value.items() if name not in fields}
        if isinstance(value, dict)
        else value
    )


async def _score_query(box: Box, check: DatabaseCheck) -> float:
    result = await _run_python(box, _QUERY, [check.path, check.query], _QUERY_SECONDS)
    try:
        table = json.loads(result.stdout)
        rows = [list(row) for row in table]
    except (ValueError, TypeError, RecursionError):
        # No such file, no database, no such table.
        return 0.0
    expected = [list(row) for row in check.rows]
    if not check.ordered:
        rows = sorted(rows, key=json.dumps)
        expected = sorted(expected, key=json.dumps)
    return float(equal_json(rows, expected))


async def _score_python(
    box: Box, check: PythonCheck, answer: str, calls: Sequence[CallMade]
) -> float:
    # The checker may print.
    mark = secrets.token_hex(16)
    listed = [
        {"tool": c.tool, "arguments": c.arguments, "result": c.result, "error": c.is_error}
        for c in calls
    ]
    arguments = {
        "code": check.code,
        "answer": answer,
        "calls": listed,
        "files": WORK_FOLDER,
        "mark": mark,
    }
    result = await _run_python(box, _CHECKER, arguments, check.seconds)
    output = result.stdout.decode("utf-8", "replace")
    lines = [line for line in output.splitlines() if line.startswith(mark)]
    if result.exit_code or not lines:
        reason = f"not within {check.seconds:g} s" if result.timed_out else read_words(result)
        raise ToolBroken(f"the checker failed: {reason}")
    score = float(json.loads(lines[-1].removeprefix(mark)))
    if not 0.0 <= score <= 1.0:
        raise ToolBroken(f"the checker returned {score:g}: expected a bool or a number from 0 to 1")
    return score


async def _run_python(box: Box, program: str, arguments: Any, seconds: float) -> CommandResult:
    texts = {"program.py": program, "given.json": json.dumps(arguments), "isolation.py": _ISOLATION}
    files = write_files(texts, _FOLDER)
    command = f"{files}\npython3 -I {_FOLDER}/program.py {_FOLDER}/given.json"
    return await box.run(command, time_limit=seconds)
