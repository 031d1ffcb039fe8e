"""Work in processes that die."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

DEATH = 9


def die() -> None:
    """End this process at once, as a crash in native code does."""
    os._exit(DEATH)


def run_in_process(work: Callable[[], object]) -> int:
    """Run `work` in a fork of this process, and return its exit code: 0, DEATH, or 1 for an exception."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001  the fork must not return into the test
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def deaths_until_done(work: Callable[[], object], most: int = 12) -> int:
    """Run `work` in one process after another until it succeeds. Return how many died before."""
    for deaths in range(most + 1):
        code = run_in_process(work)
        if code == 0:
            return deaths
        assert code == DEATH, "the work raised"
    raise AssertionError(f"it still dies after {most} deaths")
