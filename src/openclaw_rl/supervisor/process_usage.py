"""Read how a process and its descendants use the machine: processor time, and the time that they waited for it.

On Linux it is in `/proc`, for each thread. On other systems `ps` prints it, without the time of waiting.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

_PROCESSES = Path("/proc")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PS_COMMAND = ("ps", "-axo", "pid=,ppid=,state=,time=")
_PS_SECONDS = 10.0
"""Time that `ps` may take."""
_PS_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
"""[days-][hours:]minutes:seconds"""
# First letters of states, as in `ps`. U: macOS waits for the disk.
_STOPPED = "Tt"
_DISK = "DU"
_RUNNABLE = "R"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUsage:
    """A reading of a process and all of its descendants. Times are seconds since their starts."""

    processor: float
    """User and system time of all of them."""
    waits: Mapping[int, float] = field(default_factory=dict)
    """Thread -> time in which it could have run and had no processor. Empty where the system does not report it."""
    is_stopped: bool = False
    """Whether the process itself is stopped, by SIGSTOP or a debugger."""
    is_runnable: bool = False
    """Whether one of them runs, or waits for a processor."""
    waits_for_disk: bool = False


def read_usage(pid: int) -> ProcessUsage | None:
    """Return the usage of a process; None if it has ended, or if the system does not report it."""
    if sys.platform != "linux":
        return _run_ps(pid)
    return _read_proc(pid)


def _read_proc(pid: int) -> ProcessUsage | None:
    processor = 0.0
    waits: dict[int, float] = {}
    states = ""
    state = ""
    for process in _descendants(pid):
        stat = _read_stat(_PROCESSES / str(process) / "stat")
        if stat is None:
            continue
        if process == pid:
            state = stat[0]
        # Fields 14 to 17 of proc(5): user and system time of the process, and of its children that have ended.
        processor += sum(map(int, stat[11:15])) / _TICKS_PER_SECOND
        for thread in _list_folder(_PROCESSES / str(process) / "task"):
            thread_stat = _read_stat(thread / "stat")
            if thread_stat is not None:
                states += thread_stat[0]
            waits |= _read_wait(thread)
    if not state:
        return None
    return ProcessUsage(
        processor=processor,
        waits=waits,
        is_stopped=state in _STOPPED,
        is_runnable=_RUNNABLE in states,
        waits_for_disk=any(letter in _DISK for letter in states),
    )


def _descendants(pid: int) -> Iterator[int]:
    """Yield a process and all that it and its descendants have started."""
    yield pid
    for thread in _list_folder(_PROCESSES / str(pid) / "task"):
        for child in _read_text(thread / "children").split():
            yield from _descendants(int(child))


def _read_stat(file: Path) -> list[str] | None:
    """Return the fields of a process or a thread from its state on; None if it has ended."""
    # The name in parentheses before it may contain spaces.
    _, _, fields = _read_text(file).rpartition(")")
    return fields.split() or None


def _read_wait(thread: Path) -> dict[int, float]:
    """Return the seconds that a thread has waited for a processor, by its id."""
    fields = _read_text(thread / "schedstat").split()
    if len(fields) < 2:
        return {}
    return {int(thread.name): int(fields[1]) / 1e9}


def _list_folder(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _run_ps(pid: int) -> ProcessUsage | None:
    try:
        ended = subprocess.run(
            _PS_COMMAND, capture_output=True, text=True, timeout=_PS_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_ps(ended.stdout, pid)


class _PsRow(NamedTuple):
    parent: int
    # The first letter, which says what the process does.
    state: str
    # Of the processor.
    seconds: float


def parse_ps(output: str, pid: int) -> ProcessUsage | None:
    """Return the usage of a process by the output of `ps -axo pid=,ppid=,state=,time=`; None if it is not in it."""
    rows: dict[int, _PsRow] = {}
    for line in output.splitlines():
        fields = line.split()
        if len(fields) == 4:
            process, parent, state, seconds = fields
            rows[int(process)] = _PsRow(int(parent), state[0], _ps_seconds(seconds))
    if pid not in rows:
        return None
    parents = {process: row.parent for process, row in rows.items()}
    family = [rows[process] for process in _with_descendants(pid, parents)]
    states = {row.state for row in family}
    return ProcessUsage(
        processor=sum(row.seconds for row in family),
        is_stopped=rows[pid].state in _STOPPED,
        is_runnable=_RUNNABLE in states,
        waits_for_disk=not states.isdisjoint(_DISK),
    )


def _with_descendants(pid: int, parents: Mapping[int, int]) -> set[int]:
    """Return a process and all below it. `parents`: process id -> id of its parent."""
    family = {pid}
    while True:
        children = {process for process, parent in parents.items() if parent in family}
        if children <= family:
            return family
        family |= children


def _ps_seconds(text: str) -> float:
    match = _PS_TIME.fullmatch(text)
    if match is None:
        return 0.0
    days, hours, minutes, seconds = match.groups()
    return 86400 * int(days or 0) + 3600 * int(hours or 0) + 60 * int(minutes) + float(seconds)
