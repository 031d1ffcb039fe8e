"""Why a worker crashed, read from what real processes print, and when it is started again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.supervisor.crash_history import (
    CrashHistory,
    WorkerOutput,
    crash_cure,
    crash_reason,
    describe_exit,
    loaded_files_state,
)

LOGGED = "print('12:50:31 judge INFO loaded'); import os; os._exit(3)"


def crash(code: str) -> tuple[str, WorkerOutput]:
    """Run the code in a process of its own; return how it ended, and its output."""
    done = subprocess.run([sys.executable, "-uc", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    output = WorkerOutput()
    for line in done.stdout.decode().splitlines():
        output.add_line(line.rstrip())
    return describe_exit(done.returncode), output


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def f(): raise ValueError('boom')\nf()", "ValueError: boom"),
        ("try:\n 1/0\nexcept Exception as e: raise KeyError('x') from e", "KeyError: 'x'"),
        ("import sys; sys.exit('openclaw-rl: train.ranks 3: expected 2')", "train.ranks 3: expected 2"),
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
    ids=["exception", "chained", "own-error", "no-output", "killed", "native", "survived-exception"],
)
def test_the_reason_is_the_error_that_ended_the_process(code: str, reason: str) -> None:
    assert crash_reason(*crash(code)) == reason


def with_plugin(path: Path) -> Config:
    return from_flat({"judge.kind": "plugin", "judge.plugin_path": str(path), "home": "/home"})


@pytest.mark.parametrize(
    ("code", "worker", "cure"),
    [
        ("import os; os._exit(3)", "judge", "rm.py (judge.plugin_path) runs in this process. Correct it"),
        ("exit('openclaw-rl: judge.plugin_path: rm.py:3: boom')", "judge", "or unset judge.plugin_path"),
        ("exit('openclaw-rl: the disk is full. Free some space')", "judge", ""),
        ("import os; os.kill(os.getpid(), 9)", "train", "doctor --troubles"),
        ("1/0", "train", "/home/logs/supervisor.log"),
    ],
)
def test_the_cure_depends_on_the_cause(tmp_path: Path, code: str, worker: str, cure: str) -> None:
    found = crash_cure(with_plugin(tmp_path / "rm.py"), worker, *crash(code))
    assert cure in found
    assert bool(cure) == bool(found)


def starts_within(seconds: float, *, lifetime: float) -> int:
    """How often a worker is started that dies some seconds after each start."""
    crashes, now, starts = CrashHistory(), 0.0, 0
    while now <= seconds:
        starts += 1
        crashes.record_crash("exit code 1", "boom", "", recovered=False)
        now += lifetime + crashes.restart_delay(1.0, 300.0)
    return starts


def test_a_worker_that_always_dies_is_tried_less_and_less_often() -> None:
    assert starts_within(157, lifetime=14) <= 7
    assert starts_within(3600, lifetime=14) <= 20
    assert starts_within(24 * 3600, lifetime=0) >= 290, "it is tried for as long as the system runs"


def test_a_worker_that_recovered_begins_again() -> None:
    crashes = CrashHistory()
    for _ in range(9):
        crashes.record_crash("exit code 1", "boom", "", recovered=False)
    assert crashes.restart_delay(1.0, 300.0) == 256
    crashes.record_crash("exit code 1", "boom", "", recovered=True)
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
