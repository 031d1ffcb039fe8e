"""What counts of the time since the work of a worker last advanced, and which limit applies."""

from __future__ import annotations

import pytest

from openclaw_rl.common.progress import Activity, WorkKind
from openclaw_rl.supervisor.hang_verdict import HangKind
from openclaw_rl.supervisor.heartbeat_monitor import HeartbeatMonitor
from openclaw_rl.supervisor.process_usage import ProcessUsage


def seconds_without_advance(*looks: tuple[float | None, float], own: bool = True) -> float:
    monitor = HeartbeatMonitor(hang=120, start=1000)
    for beat, now in looks:
        monitor.record_check(beat, now, is_own_beat=own)
    return monitor.quiet.counted


def test_silence_is_the_time_between_checks() -> None:
    assert seconds_without_advance((1.0, 10), (2.0, 11), (2.0, 12), (2.0, 13)) == 2
    assert seconds_without_advance((1.0, 10), (2.0, 11), (2.0, 12), (3.0, 13)) == 0


def test_a_starting_worker_has_the_longer_limit() -> None:
    monitor = HeartbeatMonitor(hang=120, start=1000)
    starting = [(None, float(n)) for n in range(500)]
    loading = [(1.0, float(n)) for n in range(500, 1000)]
    assert not any(monitor.record_check(*each, starting=True) for each in [*starting, *loading])
    assert monitor.silence_limit == 1000
    monitor.record_check(2.0, 1000)
    assert monitor.silence_limit == 120


def test_the_end_of_the_start_is_known() -> None:
    """From it, a worker has recovered from its crashes after ten minutes: loading a model may take longer."""
    monitor = HeartbeatMonitor(hang=120, start=1000)
    for beat, now in ((1.0, 10.0), (2.0, 700.0)):
        monitor.record_check(beat, now, starting=True)
    assert monitor.started_at is None
    for beat, now in ((3.0, 800.0), (4.0, 801.0)):
        monitor.record_check(beat, now)
    assert monitor.started_at == 800.0


@pytest.mark.parametrize("beats", [[None], [1.0], [None, 1.0]])
def test_a_worker_that_hangs_while_it_starts_is_found(beats: list[float | None]) -> None:
    monitor = HeartbeatMonitor(hang=120, start=1000)
    for n, beat in enumerate(beats):
        assert not monitor.record_check(beat, float(n), starting=True)
    last = len(beats) - 1
    assert [
        n
        for n in range(last + 1, last + 1003)
        if monitor.record_check(beats[-1], float(n), starting=True)
    ] == [last + n for n in (1000, 1001, 1002)]
    assert monitor.silence_limit == 1000


def test_a_running_worker_has_the_shorter_limit() -> None:
    monitor = HeartbeatMonitor(hang=120, start=1000)
    assert not monitor.record_check(2.0, 11), "its first heartbeat: it may hang at once"
    assert [n for n in range(12, 133) if monitor.record_check(2.0, float(n))] == [131, 132]


def test_a_suspended_machine_counts_little() -> None:
    assert seconds_without_advance((1.0, 10), (2.0, 11), (2.0, 5000), (2.0, 5001)) == 3


def test_a_clock_set_back_does_not_count_as_silence() -> None:
    assert seconds_without_advance((100.0, 10), (101.0, 11), (3.0, 12), (4.0, 13)) == 0


def test_another_process_of_the_same_name_does_not_count_as_silence() -> None:
    """Two trainers on one home: each overwrites the other's heartbeat."""
    monitor = HeartbeatMonitor(hang=120, start=1000)
    assert not any(
        monitor.record_check(beat, beat, is_own_beat=False) for beat in map(float, range(2000))
    )
    for own in (True, False):
        assert not monitor.record_check(5000.0 + own, 2001.0, is_own_beat=own)
    assert not any(
        monitor.record_check(beat, beat, is_own_beat=False)
        for beat in map(float, range(6000, 8000))
    )


def test_a_heartbeat_of_an_earlier_process_does_not_count() -> None:
    monitor = HeartbeatMonitor(hang=120, start=1000)
    assert [n for n in range(1002) if monitor.record_check(7.0, float(n), is_own_beat=False)] == [
        1000,
        1001,
    ]


def computing(seconds: float) -> ProcessUsage:
    return ProcessUsage(processor=seconds, waits={1: 0.0}, is_runnable=True)


def test_a_pass_may_take_ten_times_what_it_is_expected_to_take() -> None:
    monitor = HeartbeatMonitor(hang=120, start=1000)
    activity = Activity(kind=WorkKind.TRAIN, expected=60.0)
    assert not monitor.record_check(1.0, 0.0)
    hangs = (
        monitor.record_check(1.0, float(n), activity=activity, usage=computing(float(n)))
        for n in range(1, 700)
    )
    hang = next(filter(None, hangs))
    assert hang.kind is HangKind.COMPUTING
    assert (hang.counted, hang.limit, hang.activity) == (600, 600, activity)


def test_the_longest_piece_of_work_so_far_extends_the_limit() -> None:
    """What an engine does between two answers has no stated size."""
    monitor = HeartbeatMonitor(hang=120, start=1000)
    assert not monitor.record_check(1.0, 0.0)
    assert not any(
        monitor.record_check(1.0, float(n), usage=computing(float(n))) for n in range(1, 101)
    )
    assert not monitor.record_check(2.0, 101.0)
    hangs = (
        monitor.record_check(2.0, float(n), usage=computing(float(n))) for n in range(102, 700)
    )
    hang = next(filter(None, hangs))
    assert hang.limit == 300


def test_the_usage_is_read_only_when_nothing_advances() -> None:
    monitor = HeartbeatMonitor(hang=120, start=1000)
    monitor.record_check(1.0, 0.0)
    assert not monitor.needs_usage
    for n in range(1, 4):
        monitor.record_check(1.0, float(n))
    assert monitor.needs_usage
    monitor.record_check(2.0, 4.0)
    assert not monitor.needs_usage
