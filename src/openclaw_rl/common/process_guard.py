"""Stands between a room and a program that it keeps: however the room ends, the program and all its children end too.

Run as a script: `guard.py COMMAND...`. Standard library alone. It says `guard: pid N` first; when its standard input
closes (the room is gone, or wants the end) it ends the program, kindly at first. It ends with the program's status.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

_PR_SET_PDEATHSIG = 1
_POLL = 0.1  # seconds
_GRACE = 6.0  # seconds that the program gets to end by itself


def _end_with_guard() -> None:
    """In the child: signals as usual again, and SIGTERM when the guard itself is killed (Linux)."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _told_to_end() -> bool:
    """Whether standard input has closed."""
    ready, _, _ = select.select([0], [], [], _POLL)
    return bool(ready) and os.read(0, 1024) == b""


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def main(command: list[str]) -> int:
    """Run `command` until it ends or the end is wanted; returns its status (128 + n for signal n)."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the room says when, by closing the pipe
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # a group of its own, which is killed as a whole
        preexec_fn=_end_with_guard,  # safe: there are no threads here
    )
    sys.stdout.write(f"guard: pid {child.pid}\n")
    sys.stdout.flush()
    try:
        while child.poll() is None and not _told_to_end():
            pass
        if child.poll() is None:
            child.terminate()
            end = time.monotonic() + _GRACE
            while child.poll() is None and time.monotonic() < end:
                time.sleep(_POLL)
    finally:
        _kill_group(child.pid)  # also what the program left behind
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
