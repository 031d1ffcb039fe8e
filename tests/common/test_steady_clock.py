"""Time limits when the wall clock jumps by hours."""

from __future__ import annotations

import subprocess
import sys

import pytest

from openclaw_rl.common import steady_clock
from openclaw_rl.common.steady_clock import AdvancingWallClock, GuardedWallClock

HOUR = 3600.0


class Machine:
    """A wall clock and a steady one."""

    def __init__(self) -> None:
        self.wall, self.steady = 1e9, 100.0

    def wait(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def clock(machine: Machine) -> GuardedWallClock:
    return GuardedWallClock(HOUR, wall=lambda: machine.wall, steady=lambda: machine.steady)


def test_without_jumps_it_is_the_wall_clock(machine: Machine, clock: GuardedWallClock) -> None:
    for _ in range(100):
        machine.wait(50)
        machine.wall += 0.01  # a correction
        assert clock() == machine.wall


def test_a_jump_ahead_is_believed_after_the_limit_that_it_would_cut_short(
    machine: Machine, clock: GuardedWallClock
) -> None:
    begun = clock()
    machine.wall += 3 * HOUR
    assert clock() == begun
    machine.wait(HOUR - 1)
    assert clock() == begun + HOUR - 1
    machine.wait(1)
    assert clock() == machine.wall, (
        "what was there before the jump is overdue by now, whichever clock is right"
    )


def test_a_jump_that_is_undone_leaves_nothing(machine: Machine, clock: GuardedWallClock) -> None:
    begun = clock()
    machine.wall += 3 * HOUR
    assert clock() == begun
    machine.wait(60)
    machine.wall -= 3 * HOUR
    assert clock() == machine.wall == begun + 60


def test_a_jump_back_is_believed_at_once(machine: Machine, clock: GuardedWallClock) -> None:
    machine.wall -= 3 * HOUR
    assert clock() == machine.wall


def test_processes_of_one_boot_share_the_steady_clock() -> None:
    code = "from openclaw_rl.common.steady_clock import *; print(boot_name(), boot_seconds())"
    name, seconds = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert name == steady_clock.boot_name()
    assert 0 <= steady_clock.boot_seconds() - float(seconds) < 60


def test_recorded_times_never_go_back(machine: Machine) -> None:
    """A reply that ended before its reaction has an earlier time, or the reaction would get no link."""
    clock = AdvancingWallClock(wall=lambda: machine.wall, steady=lambda: machine.steady)
    first = clock()
    assert first == machine.wall
    machine.wait(10)
    machine.wall -= 3 * HOUR
    assert clock() == first + 10
    machine.wait(10)
    assert clock() == first + 20
    machine.wall += 4 * HOUR
    assert clock() == machine.wall
