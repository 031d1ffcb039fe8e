"""A process that must not outlive the one that started it does not, however late it asks for that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from tests.process_ends import find_running

STARTS = """
import os, subprocess, sys
child = "import time; time.sleep(0.3); from openclaw_rl.common.parent_death import die_with_parent; "
child += f"die_with_parent({os.getpid()}); print('asked', flush=True); time.sleep(60)"
print(subprocess.Popen([sys.executable, "-c", child]).pid, flush=True)
"""
STAYS = "import time; time.sleep(60)"


@pytest.mark.parametrize("ends", ["before it asks", "afterwards"])
def test_it_ends_with_its_parent(ends: str) -> None:
    program = STARTS if ends == "before it asks" else STARTS + STAYS
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        if ends == "afterwards":
            assert parent.stdout.readline() == "asked\n"
            parent.kill()
        if left := find_running([child], within=300):
            os.kill(child, signal.SIGKILL)
        assert not left
        assert parent.stdout.read() == "", "it had no time to go on"
