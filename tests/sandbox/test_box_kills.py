"""What dead owners of boxes left is removed, also after kills at random moments. `--kills 100` for the long run."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sandbox.test_escapes import processes_with

from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox import control_groups
from openclaw_rl.sandbox.box import BoxLimits
from openclaw_rl.sandbox.box_lease import (
    GROUPS_FILE,
    BoxLease,
    leases_folder,
    sweep_leases,
    usable_parents,
)
from openclaw_rl.sandbox.control_groups import add_processes, make_groups, plan_groups

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
TRANSFER = """
import asyncio, sys, tempfile
tempfile.tempdir = sys.argv[1]
from pathlib import Path
from openclaw_rl.sandbox.box import BoxLimits, BoxRoot
from openclaw_rl.sandbox.box_commands import CommandBox

class HangingBox(CommandBox):
    async def open(self): ...
    async def _close_box(self): ...
    async def _run_script(self, script, **_):
        print("within", flush=True)
        await asyncio.sleep(300)

asyncio.run(HangingBox(BoxRoot(), BoxLimits()).put(Path(__import__("os").__file__), "/work/file"))
"""
"""The owner of a box that never takes an archive."""


def test_owners_killed_at_random_moments_leave_nothing(
    public_folder: Path, request: pytest.FixtureRequest
) -> None:
    dice = random.Random(14)
    leases, groups = 0, set[Path]()
    for _ in range(request.config.getoption("--kills")):
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(public_folder)], stdout=subprocess.PIPE
        )
        assert owner.stdout is not None
        with owner.stdout:
            assert owner.stdout.readline() == b"imported\n"
            time.sleep(dice.uniform(0, 0.4))
            owner.kill()
            owner.wait()
        names = {folder.name for folder in leases_folder().iterdir()}
        leases += len(names)
        for file in leases_folder().glob(f"*/{GROUPS_FILE}"):
            groups |= {Path(line) for line in file.read_text().splitlines()}
        time.sleep(0.1)
        sweep_leases()
        until = time.monotonic() + 240
        while left := processes_with("98.7125", *names):
            assert time.monotonic() < until, left
            time.sleep(0.02)
        for folder in leases_folder().iterdir():  # its owner died before it took the lock
            os.utime(folder, (0, 0))
        sweep_leases()
        assert list(leases_folder().iterdir()) == []
    assert leases > 0
    assert [group for group in groups if group.exists()] == []
    assert str(public_folder) not in Path("/proc/self/mountinfo").read_text()


@pytest.fixture
def made_groups() -> Iterator[tuple[BoxLease, list[Path]]]:
    """The control groups of a box without a process, and its lease."""
    parents = usable_parents()
    if not parents.folders:
        pytest.skip("no control group can be made here")
    lease = BoxLease.acquire(os.geteuid())
    groups = plan_groups(parents, lease.folder.name)
    lease.write_groups(groups)
    make_groups(parents, lease.folder.name, BoxLimits())
    yield lease, groups
    assert [group for group in groups if group.exists()] == []


def test_a_lease_stays_until_its_groups_are_removed(
    made_groups: tuple[BoxLease, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that were killed may still hold the groups on a busy machine, as a group below them does here."""
    lease, groups = made_groups
    monkeypatch.setattr(control_groups, "_REMOVAL_SECONDS", 0.02)
    below = groups[0] / "below"
    below.mkdir()
    lease.release()
    assert sweep_leases() == 0
    assert lease.folder.exists()
    below.rmdir()
    assert sweep_leases() == 1
    assert not lease.folder.exists()


def test_empty_groups_whose_lease_is_lost_are_removed_later(
    made_groups: tuple[BoxLease, list[Path]],
) -> None:
    lease, groups = made_groups
    shutil.rmtree(lease.folder)  # as a cleaner of temporary files does
    os.close(lease._lock)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        add_processes(groups, [process.pid])
        for group in groups:
            os.utime(group, (0, 0))
        sweep_leases()
        assert all(group.exists() for group in groups), "they hold a process"
        process.kill()
    for group in groups:
        os.utime(group)
    sweep_leases()
    assert all(group.exists() for group in groups), "their box may just be opened"
    for group in groups:
        os.utime(group, (0, 0))
    sweep_leases()
    assert not any(group.exists() for group in groups)


def test_a_box_whose_group_was_removed_is_not_opened(
    made_groups: tuple[BoxLease, list[Path]],
) -> None:
    lease, groups = made_groups
    for group in groups:
        group.rmdir()
    with pytest.raises(SandboxError, match="was removed while the box was opened"):
        add_processes(groups, [os.getpid()])
    lease.release()


def test_a_transfer_of_a_killed_owner_leaves_no_archive(public_folder: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", TRANSFER, str(public_folder)], stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    with owner.stdout:
        assert owner.stdout.readline() == b"within\n"
        assert len(list(leases_folder().iterdir())) == 1
        owner.kill()
        owner.wait()
    assert sweep_leases() == 1
    assert list(public_folder.iterdir()) == [leases_folder()]
