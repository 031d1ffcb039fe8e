"""Decides whether a process hangs, from what it had of the machine since its work last advanced. Pure functions.

Time in which a process waited for a processor or for the disk does not count: on a busy machine healthy work is slow.
What counts is bounded by the size of the work. So three things are hangs: a process that was stopped, one that waits
for something that never comes, and one that computes far longer than its work needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from openclaw_rl.common.progress import Activity, describe_activity
from openclaw_rl.supervisor.process_usage import ProcessUsage

WORK_FACTOR = 10.0
"""Times the seconds that a piece of work is expected to take, within which it must end."""
LONGEST_FACTOR = 3.0
"""The same, times the longest piece of work of the process so far."""
BUSY_SHARE = 0.5
"""Share of the counted seconds in which a process must have computed to count as one that computes."""


class HangKind(StrEnum):
    """How a process hangs."""

    STOPPED = "stopped"  # by a signal or a debugger
    WAITING = "waiting"  # it hardly computes: a deadlock, a lost connection, a sleep
    COMPUTING = "computing"  # it computes without an end


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """Time since the work of a process last advanced, in seconds."""

    passed: float = 0.0  # by the clock, less gaps between two checks
    # Of these, less the time in which it waited for a processor or for the disk.
    counted: float = 0.0
    computed: float = 0.0  # processor time
    is_stopped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HangLimits:
    """Counted seconds without an advance. `computing`: for a process that computes."""

    waiting: float
    computing: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """A process that hangs."""

    kind: HangKind
    counted: float  # seconds without an advance
    limit: float  # of them
    setting: str  # that moves the limit
    activity: Activity | None = None


def add_interval(
    quiet: Quiet, passed: float, before: ProcessUsage | None, after: ProcessUsage | None
) -> Quiet:
    """Return `quiet` with a further interval without an advance.

    `passed`: its seconds; `before`, `after`: what the process had had at both ends; None: not known, and then all of
    the interval counts.
    """
    whole = replace(quiet, passed=quiet.passed + passed)
    if after is not None and after.is_stopped:
        return replace(whole, counted=quiet.counted + passed, is_stopped=True)
    if before is None or after is None:
        return replace(whole, counted=quiet.counted + passed, is_stopped=False)
    computed = max(0.0, after.processor - before.processor)
    return replace(
        whole,
        counted=quiet.counted + passed - _waited(passed, computed, before, after),
        computed=quiet.computed + computed,
        is_stopped=False,
    )


def _waited(passed: float, computed: float, before: ProcessUsage, after: ProcessUsage) -> float:
    """Return the seconds of an interval in which the process did not run because it waited for the machine."""
    if after.waits_for_disk:
        return passed
    # A process that could run, and did not, waited: for a processor, or for the end of a limit on its processor time.
    waited = max(0.0, passed - computed) if after.is_runnable else 0.0
    for thread, seconds in after.waits.items():
        waited = max(waited, seconds - before.waits.get(thread, 0.0))
    return min(passed, waited)


def find_limits(limit: float, activity: Activity | None, longest: float) -> HangLimits:
    """Return the limits of a process that does `activity`.

    `limit`: `run.heartbeat_timeout`; `longest`: counted seconds of the longest piece of work of the process so far.
    """
    computing = max(limit, LONGEST_FACTOR * longest)
    if activity is None:
        return HangLimits(waiting=limit, computing=computing)
    if activity.allowed is not None:
        allowed = max(limit, activity.allowed)
        return HangLimits(waiting=allowed, computing=allowed)
    if activity.expected is not None:
        computing = max(computing, WORK_FACTOR * activity.expected)
    return HangLimits(waiting=limit, computing=computing)


def find_hang(
    quiet: Quiet, limits: HangLimits, *, setting: str, activity: Activity | None = None
) -> Hang | None:
    """Return how a process hangs; None if it does not. `setting`: that moves the limits."""
    kind = _kind_of(quiet)
    limit = limits.computing if kind is HangKind.COMPUTING else limits.waiting
    if quiet.counted < limit:
        return None
    return Hang(kind=kind, counted=quiet.counted, limit=limit, setting=setting, activity=activity)


def _kind_of(quiet: Quiet) -> HangKind:
    if quiet.is_stopped:
        return HangKind.STOPPED
    if quiet.computed >= BUSY_SHARE * quiet.counted:
        return HangKind.COMPUTING
    return HangKind.WAITING


def describe_hang(hang: Hang) -> str:
    """Return how a process hangs, in what, and the setting that moves the limit, for people."""
    activity = hang.activity
    where = "" if activity is None else f" in {describe_activity(activity)}"
    limit = f"{hang.setting}, here {hang.limit:.3g} s"
    match hang.kind:
        case HangKind.STOPPED:
            return f"stopped by a signal for {hang.counted:.3g} s{where} ({limit})"
        case HangKind.WAITING:
            return f"{hang.counted:.3g} s without progress or use of the processor{where} ({limit})"
        case HangKind.COMPUTING:
            needs = ""
            if activity is not None and activity.expected is not None:
                needs = f", which needs about {activity.expected:.3g} s"
            return (
                f"{hang.counted:.3g} s of processor time without progress{where}{needs} ({limit})"
            )
