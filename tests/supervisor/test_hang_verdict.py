"""Whether a process hangs: by what it had of the machine and by the size of its work, and not by the clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.common.progress import Activity, WorkKind, working_on
from openclaw_rl.supervisor.hang_verdict import (
    Hang,
    HangKind,
    Quiet,
    add_interval,
    describe_hang,
    find_hang,
    find_limits,
)
from openclaw_rl.supervisor.process_usage import ProcessUsage

LIMIT = 120.0
SETTING = "run.heartbeat_timeout"
THREAD = 7
shares = st.floats(0.0, 1.0)
expectations = st.none() | st.floats(0.01, 100.0)


def reading(computed: float, waited: float = 0.0, **states: bool) -> ProcessUsage:
    return ProcessUsage(processor=computed, waits={THREAD: waited}, **states)


def pass_of(expected: float | None) -> Activity:
    return Activity(kind=WorkKind.TRAIN, number=2, total=3, expected=expected)


def seconds_until_hang(
    share: float,
    waiting: float,
    *,
    activity: Activity | None = None,
    longest: float = 0.0,
    most: int = 20_000,
    **states: bool,
) -> tuple[int, Hang] | None:
    """Check each second a process that computes for `share` of it and waits for a processor for `waiting` of it."""
    limits = find_limits(LIMIT, activity, longest)
    quiet = Quiet()
    for second in range(1, most + 1):
        before = reading(share * (second - 1), waiting * (second - 1), **states)
        quiet = add_interval(
            quiet, 1.0, before, reading(share * second, waiting * second, **states)
        )
        hang = find_hang(quiet, limits, setting=SETTING, activity=activity)
        if hang is not None:
            return second, hang
    return None


@given(load=st.floats(1.5, 30.0), expected=st.floats(1.0, 60.0), slower=st.floats(0.1, 5.0))
def test_a_pass_under_load_is_never_killed(load: float, expected: float, slower: float) -> None:
    """It needs up to five times what was expected, and gets 1 / load of a processor."""
    needed = int(expected * slower * load)
    share = 1.0 / load
    assert seconds_until_hang(share, 1.0 - share, activity=pass_of(expected), most=needed) is None


@given(share=st.floats(0.0, 0.02), expected=expectations, load=st.floats(0.0, 0.5))
def test_a_deadlock_is_found_whatever_the_work_and_the_load_are(
    share: float, expected: float | None, load: float
) -> None:
    """Its heartbeat still needs a little of the processor, and waits for it under load."""
    found = seconds_until_hang(share, load, activity=pass_of(expected))
    assert found is not None
    seconds, hang = found
    assert hang.kind is HangKind.WAITING
    assert seconds <= LIMIT / (1.0 - load) + 2


@given(load=st.floats(1.0, 20.0), expected=expectations, longest=st.floats(0.0, 100.0))
def test_an_endless_loop_is_found_after_a_limit_that_depends_on_the_work(
    load: float, expected: float | None, longest: float
) -> None:
    share = 1.0 / load
    found = seconds_until_hang(
        share, 1.0 - share, activity=pass_of(expected), longest=longest, most=40_000
    )
    assert found is not None
    seconds, hang = found
    assert hang.kind is HangKind.COMPUTING
    assert hang.limit == max(LIMIT, 10 * (expected or 0.0), 3 * longest)
    assert hang.limit * load - 1 <= seconds <= hang.limit * load + load + 1


@given(share=shares, waiting=shares)
def test_a_stopped_process_is_found(share: float, waiting: float) -> None:
    """Nothing that it did before it was stopped postpones that."""
    found = seconds_until_hang(0.0, 0.0, activity=pass_of(1000.0), is_stopped=True)
    assert found is not None
    assert found[0] == LIMIT
    assert found[1].kind is HangKind.STOPPED


@given(computed=st.floats(0.0, 16.0), waited=st.floats(0.0, 100.0), passed=st.floats(0.0, 2.0))
def test_counted_time_is_at_most_the_time_that_has_passed(
    computed: float, waited: float, passed: float
) -> None:
    """Also with many threads, and with a gap between the checks in which it waited for longer."""
    quiet = add_interval(Quiet(), passed, reading(0.0), reading(computed, waited, is_runnable=True))
    assert 0.0 <= quiet.counted <= passed
    assert quiet.passed == passed


def test_time_without_a_processor_or_disk_does_not_count() -> None:
    before, starved = reading(5.0), reading(5.0, is_runnable=True)
    assert add_interval(Quiet(), 1.0, before, starved).counted == 0, (
        "as under a limit on processor time"
    )
    assert add_interval(Quiet(), 1.0, before, reading(5.0, waits_for_disk=True)).counted == 0
    assert add_interval(Quiet(), 1.0, before, reading(5.0, waited=0.75)).counted == 0.25
    assert add_interval(Quiet(), 1.0, None, None).counted == 1, (
        "where the system says nothing, all of it counts"
    )


def test_a_continued_process_is_no_longer_stopped() -> None:
    quiet = add_interval(Quiet(), 100.0, reading(0.0), reading(0.0, is_stopped=True))
    quiet = add_interval(quiet, 10.0, reading(0.0), reading(10.0, is_runnable=True))
    assert not quiet.is_stopped
    assert find_hang(quiet, find_limits(LIMIT, None, 0.0), setting=SETTING) is None


def test_a_library_that_reports_no_progress_gets_its_time() -> None:
    library = Activity(kind=WorkKind.LIBRARY, allowed=1800.0)
    for share in (0.0, 1.0):
        found = seconds_until_hang(share, 0.0, activity=library)
        assert found is not None
        assert found[0] == 1800


def test_a_pass_in_a_call_of_a_library_is_allowed_the_same() -> None:
    from openclaw_rl.common import progress

    with progress.library_call(), working_on(Activity(kind=WorkKind.SCORE)):
        current = progress.current_activity()
        assert current is not None
        assert (current.kind, current.allowed) == (WorkKind.SCORE, progress.MAX_LIBRARY_SECONDS)
    assert progress.current_activity() is None


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            HangKind.STOPPED,
            "stopped by a signal for 121 s in training pass 2 of 3 (run.heartbeat_timeout, here 120 s)",
        ),
        (
            HangKind.WAITING,
            "121 s without progress or use of the processor in training pass 2 of 3 (run.heartbeat_timeout, here "
            "120 s)",
        ),
        (
            HangKind.COMPUTING,
            "121 s of processor time without progress in training pass 2 of 3, which needs about 12 s "
            "(run.heartbeat_timeout, here 120 s)",
        ),
    ],
)
def test_a_hang_is_described_with_the_setting_that_moves_its_limit(
    kind: HangKind, message: str
) -> None:
    hang = Hang(kind=kind, counted=121.0, limit=120.0, setting=SETTING, activity=pass_of(12.0))
    assert describe_hang(hang) == message
