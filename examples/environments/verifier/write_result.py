"""Verifier of a task whose checks run the policy's code: writes the result by the exit status of a command.

    python3 -I /tests/write_result.py COMMAND...
    python3 -I /tests/write_result.py --run /tests/PROGRAM.py ARGUMENT...

Writes 1 to /logs/verifier/reward.txt if the command ends with exit status 0, else 0. `--run`: a program of the tests in
Python, in a copy of this process, which saves the start of another. The result is written when every
process that the command started is gone, in place of whatever they left in its folder: code under test may leave a
result, or a process that writes one. No other process of the same user can look into this one. If /tests/word is there,
it is read and removed before the command starts, and written with the result to /logs/verifier/proof.txt: whoever put
it there knows by it that the result is from here.
"""

import contextlib
import ctypes
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

KILL_SECONDS = 10
RESULTS = Path("/logs/verifier")
WORD = Path("/tests/word")
# From linux/prctl.h: whether others of the same user may trace a process, or read its memory and variables.
PR_SET_DUMPABLE = 4
# A process that loses its parent becomes a child of this one.
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


def take_word() -> str:
    """Return the word that proves the result, and remove it; empty if there is none."""
    if not WORD.is_file():
        return ""
    word = WORD.read_text().strip()
    WORD.unlink()
    return word


def write_reward(reward: int, word: str) -> None:
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
    if word:
        (RESULTS / "proof.txt").write_text(f"{word} {reward}\n")


def run_command(command: list[str]) -> bool:
    """Return whether a command ends with exit status 0."""
    return subprocess.run(command).returncode == 0


def run_program(words: list[str]) -> bool:
    """Return whether a program ends with exit status 0. `words`: its path and arguments."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:  # noqa: BLE001  a check that does not hold
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def main() -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    word = take_word()
    solved = False
    try:
        solved = run_program(sys.argv[2:]) if sys.argv[1] == "--run" else run_command(sys.argv[1:])
    finally:
        solved = end_processes() and solved
        write_reward(int(solved), word)


if __name__ == "__main__":
    main()
