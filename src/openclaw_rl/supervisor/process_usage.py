"""Usage of the machine by the processes of a worker: processor time, and the time that they waited for it.

Linux says it in `/proc`, for each thread. Other systems say it by `ps`, without the time of waiting.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_PROCESSES = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100  # per second
_PS_COMMAND = ("ps", "-axo", "pid=,ppid=,state=,time=")
_PS_SECONDS = 10.0  # seconds that `ps` may take
_PS_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")  # [days-][hours:]minutes:seconds
_STOPPED, _DISK, _RUNNABLE = "Tt", "DU", "R"  # first letters of states, as in `ps`; U: macOS waits for the disk


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUsage:
    """A reading of a process and all of its descendants. Times are seconds since their starts."""

    processor: float  # user and system time of all of them
    waits: Mapping[int, float] = field(default_factory=dict)
    """Thread -> time in which it could have run and had no processor. Empty where the system does not say."""
    is_stopped: bool = False  # the process itself: by SIGSTOP or a debugger
    is_runnable: bool = False  # one of them runs, or waits for a processor
    waits_for_disk: bool = False


def read_usage(pid: int) -> ProcessUsage | None:
    """Return the usage of a process; None if it has ended, or if the system does not say."""
    if sys.platform != "linux":
        return _ask_ps(pid)
    return _read_proc(pid)


def _read_proc(pid: int) -> ProcessUsage | None:
    processor, waits, states = 0.0, dict[int, float](), ""
    state = ""
    for process in _descendants(pid):
        stat = _read_stat(_PROCESSES / str(process) / "stat")
        if stat is None:
            continue
        if process == pid:
            state = stat[0]
        # Fields 14 to 17 of proc(5): user and system time of the process, and of its children that have ended.
        processor += sum(map(int, stat[11:15])) / _TICKS
        for thread in _list_folder(_PROCESSES / str(process) / "task"):
            states += (_read_stat(thread / "stat") or [""])[0]
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
    return _read_text(file).rpartition(")")[2].split() or None


def _read_wait(thread: Path) -> dict[int, float]:
    """Return the seconds that a thread has waited for a processor, by its id."""
    fields = _read_text(thread / "schedstat").split()
    return {int(thread.name): int(fields[1]) / 1e9} if len(fields) > 1 else {}


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


def _ask_ps(pid: int) -> ProcessUsage | None:
    try:
        done = subprocess.run(_PS_COMMAND, capture_output=True, text=True, timeout=_PS_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_ps(done.stdout, pid)


def parse_ps(output: str, pid: int) -> ProcessUsage | None:
    """Return the usage of a process by the output of `ps -axo pid=,ppid=,state=,time=`; None if it is not in it."""
    rows = {int(row[0]): row for line in output.splitlines() if len(row := line.split()) == 4}
    if pid not in rows:
        return None
    members = {pid}
    while more := {process for process, row in rows.items() if int(row[1]) in members} - members:
        members |= more
    states = [rows[member][2] for member in members]
    return ProcessUsage(
        processor=sum(_ps_seconds(rows[member][3]) for member in members),
        is_stopped=rows[pid][2][0] in _STOPPED,
        is_runnable=any(state[0] == _RUNNABLE for state in states),
        waits_for_disk=any(state[0] in _DISK for state in states),
    )


def _ps_seconds(text: str) -> float:
    match = _PS_TIME.fullmatch(text)
    if match is None:
        return 0.0
    days, hours, minutes, seconds = match.groups()
    return 86400 * int(days or 0) + 3600 * int(hours or 0) + 60 * int(minutes) + float(seconds)
