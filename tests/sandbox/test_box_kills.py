"""Owners of boxes are killed at random moments; nothing of their boxes is left. `--kills 100` for the long run."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.sandbox.test_escapes import processes_with

from openclaw_rl.sandbox.box_lease import leases_folder, sweep_leases
from openclaw_rl.sandbox.control_groups import NAME_PREFIX, find_parents

MARK = "sleep 98.7125"
OWNER = f"""
import asyncio, sys, tempfile
tempfile.tempdir = sys.argv[1]
from openclaw_rl.sandbox.box import BoxLimits, BoxRoot
from openclaw_rl.sandbox.bubblewrap import BubblewrapBox

async def main():
    print("imported", flush=True)
    boxes = [BubblewrapBox(BoxRoot(), BoxLimits()) for _ in range(3)]
    await asyncio.gather(*(box.open() for box in boxes))
    while True:
        await asyncio.gather(*(box.run("setsid {MARK} >/dev/null 2>&1 & {MARK}", time_limit=0.1) for box in boxes))

asyncio.run(main())
"""


def test_owners_killed_at_random_moments_leave_nothing(public_folder: Path, request: pytest.FixtureRequest) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    dice = random.Random(14)
    leases = 0
    for _ in range(request.config.getoption("--kills")):
        owner = subprocess.Popen([sys.executable, "-c", OWNER, str(public_folder)], stdout=subprocess.PIPE)
        assert owner.stdout is not None
        with owner.stdout:
            assert owner.stdout.readline() == b"imported\n"
            time.sleep(dice.uniform(0, 0.4))
            owner.kill()
            owner.wait()
        leases += len(list(leases_folder().iterdir()))
        time.sleep(0.1)
        sweep_leases()
        until = time.monotonic() + 10
        while left := processes_with("98.7125", "box_agent.sh"):
            assert time.monotonic() < until, left
            time.sleep(0.02)
        for folder in leases_folder().iterdir():  # its owner died before it took the lock
            os.utime(folder, (0, 0))
        sweep_leases()
        assert list(leases_folder().iterdir()) == []
    groups = [group for parent in find_parents().folders.values() for group in parent.glob(f"{NAME_PREFIX}*")]
    assert leases > 0
    assert groups == []
    assert Path("/proc/self/mountinfo").read_text() == mounts
