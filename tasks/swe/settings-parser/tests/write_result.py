"""Verifier of a task whose checks run the policy's code: writes the result by the exit status of a command.

    python3 -I /tests/write_result.py COMMAND...

Writes 1 to /logs/verifier/reward.txt if the command ends with exit status 0, else 0. The result is written when every
process that the command started is gone, in place of whatever they left in its folder: code under test may leave a
result, or a process that writes one.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

KILL_SECONDS = 10
RESULTS = Path("/logs/verifier")
# From linux/prctl.h: a process that loses its parent becomes a child of this one.
PR_SET_CHILD_SUBREAPER = 36


def end_processes() -> bool:
    """Kill all that the command started and left running. Return whether nothing is left."""
    end = time.monotonic() + KILL_SECONDS
    while time.monotonic() < end:
        parents = {}
        for file in Path("/proc").glob("[0-9]*/stat"):
            try:
                parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
            except OSError:
                # It has ended.
                continue
        for pid in parents:
            above = pid
            while above in parents and above != os.getpid():
                above = parents[above]
            if above == os.getpid() != pid:
                # It has ended.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
    return False


def write_reward(reward: int) -> None:
    """Write the result, and nothing else that the command may have left in its place."""
    if RESULTS.is_symlink() or RESULTS.is_file():
        RESULTS.unlink()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for path in RESULTS.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    (RESULTS / "reward.txt").write_text(f"{reward}\n")


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    solved = False
    try:
        solved = subprocess.run(sys.argv[1:]).returncode == 0
    finally:
        solved = end_processes() and solved
        write_reward(int(solved))


if __name__ == "__main__":
    main()
