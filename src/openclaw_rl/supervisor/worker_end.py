"""Why the process of a worker ended, as data, and in words."""

from __future__ import annotations

import signal
from pathlib import Path

from openclaw_rl.common.log_codes import MEMORY_CAUSES, EndCause
from openclaw_rl.supervisor.hang_verdict import Hang, HangKind, describe_hang
from openclaw_rl.supervisor.write_lock import StuckWriter

_VMSTAT = Path("/proc/vmstat")
_OUT_OF_MEMORY_COUNTER = "oom_kill"

MACHINE_CAUSES = MEMORY_CAUSES | {EndCause.STOPPED}
"""Causes that are no fault of the rows that the process worked on."""
KILLED_BY_SUPERVISOR = frozenset({EndCause.STOPPED, EndCause.HANG, EndCause.WRITE_LOCK})
KillReason = Hang | StuckWriter
"""Why the supervisor kills a process."""


def find_cause(code: int, kill: KillReason | None, *, out_of_memory: bool) -> EndCause:
    """Return why a process ended.

    `code`: exit status of `asyncio.subprocess`, negative for a signal; `kill`: why the supervisor killed it, if it did;
    `out_of_memory`: whether the system has ended a process because memory ran out since this one was started.
    """
    if kill is not None:
        return _cause_of_kill(kill)
    if code >= 0:
        return EndCause.EXIT
    if code != -signal.SIGKILL:
        return EndCause.CRASH
    return EndCause.OUT_OF_MEMORY if out_of_memory else EndCause.KILLED


def _cause_of_kill(kill: KillReason) -> EndCause:
    if isinstance(kill, StuckWriter):
        return EndCause.STOPPED if kill.is_stopped else EndCause.WRITE_LOCK
    return EndCause.STOPPED if kill.kind is HangKind.STOPPED else EndCause.HANG


def describe_kill(kill: KillReason) -> str:
    """Return why the supervisor kills a process, for people."""
    if isinstance(kill, Hang):
        return describe_hang(kill)
    if kill.is_stopped:
        return f"stopped by a signal for {kill.seconds:.0f} s while it held the write lock of the store"
    return f"it held the write lock of the store for {kill.seconds:.0f} s without a commit"


def count_memory_kills() -> int:
    """Return how many processes the system has ended because memory ran out since it started; 0 if it does not say."""
    try:
        lines = _VMSTAT.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    counts = [line.split() for line in lines]
    return next((int(row[1]) for row in counts if row[:1] == [_OUT_OF_MEMORY_COUNTER]), 0)
