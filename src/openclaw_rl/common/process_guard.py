"""Wrapper process that ends a program and all its children when the worker that started it ends, in whatever way.

Run as a script: `process_guard.py COMMAND...`. It uses only the standard library and first prints `guard: pid N`. When
its standard input closes, it ends the program with SIGTERM, then SIGKILL, and exits with the program's status.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
# Seconds.
_POLL_SECONDS = 0.1
# Seconds between SIGTERM and SIGKILL.
_GRACE_SECONDS = 6.0


def set_parent_death_signal(number: int) -> None:
    """On Linux, make the kernel send this process the signal `number` when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def process_exists(pid: int) -> bool:
    """Return whether this machine has a process with this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # It exists and belongs to another user.
        return True
    return True


def end_process(status: int) -> NoReturn:
    """End this process after its exit functions, but without the end of the interpreter.

    That takes two seconds with torch. The caller has ended its threads and closed its files.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        # A closed pipe, or a full disk.
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status)


def _prepare_child() -> None:
    """Set up the child: default signal handlers, and on Linux SIGTERM if the guard is killed."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    set_parent_death_signal(signal.SIGTERM)


def _stdin_closed() -> bool:
    """Return whether standard input was closed, after waiting up to `_POLL_SECONDS`."""
    ready, _, _ = select.select([0], [], [], _POLL_SECONDS)
    return bool(ready) and os.read(0, 1024) == b""


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _terminate(child: subprocess.Popen[bytes]) -> None:
    """Ask the program to end, and wait for it a while."""
    child.terminate()
    end = time.monotonic() + _GRACE_SECONDS
    while child.poll() is None and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)


def main(command: list[str]) -> int:
    """Run `command` until it ends or standard input closes; return its status (128 + n for signal n)."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # Only closing the pipe ends the program.
        signal.signal(number, signal.SIG_IGN)
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        # A separate process group, so that it can be killed as a whole.
        start_new_session=True,
        # Safe, as this process has no threads.
        preexec_fn=_prepare_child,
    )
    sys.stdout.write(f"guard: pid {child.pid}\n")
    sys.stdout.flush()
    try:
        while child.poll() is None and not _stdin_closed():
            pass
        if child.poll() is None:
            _terminate(child)
    finally:
        # Also children that the program left running.
        _kill_group(child.pid)
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
