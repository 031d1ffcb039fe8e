"""Why a worker crashed, read from what real processes print, and when it is started again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from openclaw_rl.common.log_codes import EndCause
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.supervisor.crash_history import (
    CrashHistory,
    WorkerOutput,
    crash_cure,
    crash_reason,
    describe_exit,
    loaded_files_state,
)
from openclaw_rl.supervisor.hang_verdict import Hang, HangKind
from openclaw_rl.supervisor.worker_end import MACHINE_CAUSES, KillReason, find_cause
from openclaw_rl.supervisor.write_lock import StuckWriter


def hang(kind: HangKind) -> Hang:
    return Hang(kind=kind, counted=121.0, limit=120.0, setting="run.heartbeat_timeout")


LOGGED = "print('12:50:31 judge INFO loaded'); import os; os._exit(3)"


def crash(code: str) -> tuple[int, WorkerOutput]:
    """Run the code in a process of its own; return its exit status, and its output."""
    done = subprocess.run(
        [sys.executable, "-uc", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    output = WorkerOutput()
    for line in done.stdout.decode().splitlines():
        output.add_line(line.rstrip())
    return done.returncode, output


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def f(): raise ValueError('boom')\nf()", "ValueError: boom"),
        ("try:\n 1/0\nexcept Exception as e: raise KeyError('x') from e", "KeyError: 'x'"),
        (
            "import sys; sys.exit('openclaw-rl: train.ranks 3: expected 2')",
            "train.ranks 3: expected 2",
        ),
        (LOGGED, "exit code 3, without an error message"),
        ("import os; os.kill(os.getpid(), 9)", "signal SIGKILL, without an error message"),
        (
            "import faulthandler, os; faulthandler.enable()\ndef f(): os.abort()\nf()",
            "signal SIGABRT: Fatal Python error: Aborted in <string>:2 (f)",
        ),
        (
            f"import traceback\ntry: 1/0\nexcept Exception: traceback.print_exc()\n{LOGGED}",
            "exit code 3, without an error message",
        ),
    ],
    ids=[
        "exception",
        "chained",
        "own-error",
        "no-output",
        "killed",
        "native",
        "survived-exception",
    ],
)
def test_the_reason_is_the_error_that_ended_the_process(code: str, reason: str) -> None:
    status, output = crash(code)
    cause = find_cause(status, None, out_of_memory=False)
    assert crash_reason(Config(), "train", cause, describe_exit(status), output) == reason


HANGS = """
import faulthandler, os, signal, threading
faulthandler.register(signal.SIGUSR1, all_threads=True)
def reward():
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
    os._exit(3)
thread = threading.Thread(target=reward)
thread.start()
thread.join()
"""


def test_a_process_that_hung_says_where_it_was_in_the_file_of_the_owner(tmp_path: Path) -> None:
    """It prints where its threads are before it is killed; the frames are no output of an error."""
    plugin = tmp_path / "rm.py"
    plugin.write_text(HANGS)
    _, output = crash(f"import runpy; runpy.run_path({str(plugin)!r})")
    assert output.error == ""
    words = "121 s without progress or use of the processor"
    found = crash_reason(with_plugin(plugin), "judge", EndCause.HANG, words, output)
    assert found.startswith(f"{words}, at {plugin}:")
    assert found.endswith(":5 (reward)")
    assert (
        crash_reason(with_plugin(tmp_path / "other.py"), "judge", EndCause.HANG, words, output)
        == words
    )


@pytest.mark.parametrize(
    ("code", "kill", "out_of_memory", "cause"),
    [
        (3, None, False, EndCause.EXIT),
        (-signal.SIGSEGV, None, False, EndCause.CRASH),
        (-signal.SIGKILL, None, False, EndCause.KILLED),
        (-signal.SIGKILL, None, True, EndCause.OUT_OF_MEMORY),
        (-signal.SIGKILL, hang(HangKind.COMPUTING), True, EndCause.HANG),
        (-signal.SIGKILL, hang(HangKind.STOPPED), False, EndCause.STOPPED),
        (-signal.SIGKILL, StuckWriter(1, 9.0, is_stopped=False), False, EndCause.WRITE_LOCK),
        (-signal.SIGKILL, StuckWriter(1, 2.0, is_stopped=True), False, EndCause.STOPPED),
    ],
)
def test_the_cause_of_an_end_separates_the_machine_from_the_process(
    code: int, kill: KillReason | None, out_of_memory: bool, cause: EndCause
) -> None:
    assert find_cause(code, kill, out_of_memory=out_of_memory) is cause
    by_machine = {EndCause.KILLED, EndCause.OUT_OF_MEMORY, EndCause.STOPPED}
    assert (cause in MACHINE_CAUSES) == (cause in by_machine)


def with_plugin(path: Path) -> Config:
    return from_flat({"judge.kind": "plugin", "judge.plugin_path": str(path), "home": "/home"})


@pytest.mark.parametrize(
    ("code", "worker", "cure"),
    [
        (
            "import os; os._exit(3)",
            "judge",
            "rm.py (judge.plugin_path) runs in this process. Correct it",
        ),
        (
            "exit('openclaw-rl: judge.plugin_path: rm.py:3: boom')",
            "judge",
            "or unset judge.plugin_path",
        ),
        ("exit('openclaw-rl: the disk is full. Free some space')", "judge", ""),
        ("import os; os.kill(os.getpid(), 9)", "train", "doctor --troubles"),
        ("1/0", "train", "/home/logs/supervisor.log"),
    ],
)
def test_the_cure_depends_on_the_cause(tmp_path: Path, code: str, worker: str, cure: str) -> None:
    status, output = crash(code)
    cause = find_cause(status, None, out_of_memory=False)
    found = crash_cure(with_plugin(tmp_path / "rm.py"), worker, cause, output)
    assert cure in found
    assert bool(cure) == bool(found)


def starts_within(seconds: float, *, lifetime: float) -> int:
    """How often a worker is started that dies some seconds after each start."""
    crashes, now, starts = CrashHistory(), 0.0, 0
    while now <= seconds:
        starts += 1
        crashes.record_crash("exit code 1", EndCause.EXIT, "boom", "", recovered=False)
        now += lifetime + crashes.restart_delay(1.0, 300.0)
    return starts


def test_a_worker_that_always_dies_is_restarted_less_and_less_often() -> None:
    assert starts_within(157, lifetime=14) <= 7
    assert starts_within(3600, lifetime=14) <= 20
    assert starts_within(24 * 3600, lifetime=0) >= 290, "it is tried for as long as the system runs"


def test_a_worker_that_recovered_begins_again() -> None:
    crashes = CrashHistory()
    for _ in range(9):
        crashes.record_crash("exit code 1", EndCause.EXIT, "boom", "", recovered=False)
    assert crashes.restart_delay(1.0, 300.0) == 256
    crashes.record_crash("exit code 1", EndCause.EXIT, "boom", "", recovered=True)
    assert (crashes.count, crashes.restart_delay(1.0, 300.0)) == (1, 1.0)


def test_a_change_of_a_loaded_file_is_seen(tmp_path: Path) -> None:
    plugin = tmp_path / "rm.py"
    config, states = with_plugin(plugin), []
    for text in ("", "x = 1", None):
        plugin.unlink() if text is None else plugin.write_text(text)
        states.append(loaded_files_state(config, "judge"))
    assert len(set(states)) == 3
    assert loaded_files_state(config, "train") == ()


def test_a_change_of_a_file_in_the_folder_of_rules_is_seen(tmp_path: Path) -> None:
    config, states = from_flat({"judge.rules_path": str(tmp_path)}), []
    for text in ("a", "ab"):
        (tmp_path / "mine.yaml").write_text(text)
        states.append(loaded_files_state(config, "judge"))
    assert len({state[1:] for state in states}) == 2
