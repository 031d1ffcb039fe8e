"""What a process and its children had of the machine, as the system says it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from openclaw_rl.supervisor.process_usage import ProcessUsage, parse_ps, read_usage

WITHIN = 120.0  # seconds
COMPUTES = "while True: pass"
SLEEPS = "import time; time.sleep(600)"
HAS_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {COMPUTES!r}])"


@contextmanager
def process_of(program: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", program], start_new_session=True) as process:
        try:
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def usage_when(pid: int, condition: Callable[[ProcessUsage], bool]) -> ProcessUsage:
    end = time.monotonic() + WITHIN
    while True:
        usage = read_usage(pid)
        assert usage is not None
        if condition(usage):
            return usage
        assert time.monotonic() < end, usage
        time.sleep(0.02)


def test_processor_time_of_a_process_that_computes_grows() -> None:
    with process_of(COMPUTES) as pid:
        usage = usage_when(pid, lambda usage: usage.processor > 0.2)
        assert usage.is_runnable
        assert not usage.is_stopped


def test_the_time_of_a_child_counts() -> None:
    """The ranks of a trainer compute, and the worker waits for them."""
    with process_of(HAS_CHILD) as pid:
        assert usage_when(pid, lambda usage: usage.processor > 0.5).is_runnable


def test_a_stopped_process_differs_from_a_sleeping_one() -> None:
    with process_of(SLEEPS) as pid:
        asleep = usage_when(pid, lambda usage: not usage.is_runnable)
        assert not asleep.is_stopped
        os.kill(pid, signal.SIGSTOP)
        assert usage_when(pid, lambda usage: usage.is_stopped).processor >= asleep.processor


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux says how long a thread has waited for a processor"
)
def test_a_process_beside_others_on_one_processor_waits_for_it() -> None:
    core = {min(os.sched_getaffinity(0))}
    with process_of(COMPUTES) as first, process_of(COMPUTES) as second:
        for pid in (first, second):
            os.sched_setaffinity(pid, core)
        usage_when(first, lambda usage: max(usage.waits.values(), default=0.0) > 0.1)


def test_a_process_that_has_ended_has_no_usage() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
        assert read_usage(ended.pid) is None


PS_OUTPUT = """
    1     0 Ss    12:34.56
  100     1 S+     0:01.50
  101   100 R      1:00.25
  102   101 U      0:00.00
  200     1 T   1-02:03:04
"""


def test_the_output_of_ps_is_read() -> None:
    """As macOS prints it."""
    usage = parse_ps(PS_OUTPUT, 100)
    assert usage is not None
    assert usage.processor == 61.75
    assert (usage.is_stopped, usage.is_runnable, usage.waits_for_disk) == (False, True, True)
    stopped = parse_ps(PS_OUTPUT, 200)
    assert stopped is not None
    assert (stopped.is_stopped, stopped.processor) == (True, 93784.0)
    assert parse_ps(PS_OUTPUT, 999) is None
