"""`openclaw-rl doctor --sandbox`: opens a box and tries to exceed each of its limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from rich.text import Text

from openclaw_rl.common.terminal import TerminalConsole
from openclaw_rl.doctor.engine import CheckResult, result_table
from openclaw_rl.errors import BoxLost, SandboxError
from openclaw_rl.sandbox.box import Box, BoxRoot
from openclaw_rl.sandbox.box_kinds import choose_kind, make_box
from openclaw_rl.sandbox.bubblewrap import BubblewrapBox
from openclaw_rl.sandbox.seccomp_filter import build_filter
from openclaw_rl.settings.load import Config

# MiB, processes, MiB: limits that are exceeded within a second
_MEMORY = 64
_PROCESSES = 24
_DISK = 8
_ENVIRONMENT = r"tr '\0' '\n' </proc/1/environ | grep -vcE '^((PWD|PATH|HOME|LANG|TERM|container|HOSTNAME)=|$)'; true"
_START_50 = (
    "sh -c 'for n in 1 2 3 4 5; do for m in 1 2 3 4 5 6 7 8 9 10; do sleep 2 & done; done; "
    "echo all' 2>/dev/null"
)
_CHECKS: Sequence[tuple[str, str, str, str]] = (
    ("empty environment", "no variable of this process", _ENVIRONMENT, "0"),
    (
        "files of this machine",
        "not visible",
        "ls -d /root/* /var/lib/* /etc/shadow 2>/dev/null | wc -l",
        "0",
    ),
    ("network", "no interface but lo", "grep -c : /proc/net/dev", "1"),
    (
        "memory",
        f"150 MiB do not fit into {_MEMORY}",
        "head -c 209715200 /dev/zero | tail -c 157286400 | wc -c",
        "0",
    ),
    (
        "disk",
        f"40 MiB do not fit into {_DISK}",
        "head -c 41943040 /dev/zero 2>/dev/null >fill; wc -c <fill",
        f"{_DISK << 20}",
    ),
    ("processes", f"at most {_PROCESSES}", _START_50, ""),
)
"""(name, expectation, command, its output if the limit holds)"""


def examine_sandbox(config: Config, *, console: TerminalConsole | None = None) -> bool:
    """Print a table of the checks. Returns whether every check passes."""
    console = console or TerminalConsole()
    console.print(Text("openclaw-rl doctor --sandbox", "bold"))
    try:
        rows = asyncio.run(_run_checks(config))
    except SandboxError as error:
        console.print(Text(f"  failed  {error}", style="red"))
        return False
    console.print(result_table(rows))
    console.print(f"  {describe_sandbox(config)}")
    return all(result.passed for _, _, result in rows)


def describe_sandbox(config: Config) -> str:
    """Return one line: whether a box can be opened here, of which kind, and which limits hold for it as a whole."""

    async def open_box() -> str:
        box = make_box(config.sandbox, BoxRoot())
        try:
            await box.open()
            return _describe_limits(choose_kind(config.sandbox, BoxRoot()), box)
        finally:
            await box.close()

    try:
        return asyncio.run(open_box())
    except SandboxError as error:
        return f"not available: {error}"


def _describe_limits(kind: str, box: Box) -> str:
    if not isinstance(box, BubblewrapBox):
        return f"{kind} works; all limits are the container's"
    limited = ", ".join(sorted(box.held_limits))
    missing = sorted({"memory", "processes"} - box.held_limits)
    clauses = [f"{kind} works"]
    if limited:
        clauses.append(f"limited for the box as a whole (control groups): {limited}")
    if missing:
        clauses.append(f"limited by rlimits, as no control group is writable: {', '.join(missing)}")
    clauses.append(
        "system calls are filtered"
        if build_filter()
        else "no filter of system calls on this architecture"
    )
    return "; ".join(clauses)


async def _run_checks(config: Config) -> list[tuple[str, str, CheckResult]]:
    small = config.sandbox.model_copy(
        update={"memory": _MEMORY, "processes": _PROCESSES, "disk": _DISK}
    )
    began = time.monotonic()
    box = make_box(small, BoxRoot())
    try:
        await box.open()
        opened = time.monotonic() - began
        began = time.monotonic()
        await box.run("true")
        observed = (
            f"{1000 * opened:.0f} ms, a command in it {1000 * (time.monotonic() - began):.0f} ms"
        )
        rows = [("start", "a box opens", CheckResult(observed, True))]
        for name, expected, command, output in _CHECKS:
            rows.append((name, expected, await _check_output(box, command, output)))
        return rows
    finally:
        await box.close()


async def _check_output(box: Box, command: str, expected: str) -> CheckResult:
    try:
        result = await box.run(command, time_limit=20)
    except BoxLost as error:
        return CheckResult(str(error), False)
    seen = result.stdout.decode(errors="replace").strip()
    return CheckResult(
        "as expected" if seen == expected else f"printed {seen[:80]!r}", seen == expected
    )
