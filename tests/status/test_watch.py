"""The page that stays current: what is on it, how it fits, and that it ends."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console
from tests.store.world import judged

from openclaw_rl.cli.main import cli
from openclaw_rl.errors import OpenClawError
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.status import watch
from openclaw_rl.store import heartbeats, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

STATUS: dict[str, Any] = {
    "head": 3,
    "states": {"live": 4, "rejected": 1},
    "liked": [None, 0.0, 0.5, 1.0],
    "liked_overall": [9, 12],
    "loops": [
        {
            **{"name": "judge", "pid": 1, "age": 0.2, "alive": True, "state": "running"},
            "note": "7 judged; " + "no usable vote " * 20,
        },
        {
            **{"name": "train", "pid": 2, "age": 31.0, "alive": False, "state": "parked"},
            "note": "waiting for turns: 1 of 4",
        },
    ],
    "queues": {"judge": (5, "without a verdict"), "train": (1, "to train on")},
    "versions": [
        {
            "version": 3,
            "state": "live",
            "turns": 4,
            "metrics": {"loss/total": 0.25, "kl": 0.0125, "tokens": 9.0},
        },
    ],
    "reasons": {
        "dropped": [{"code": "timeout", "reason": "no reaction", "count": 3}],
        "untrainable": [{"code": "greedy", "reason": "greedy sampling", "count": 4}],
    },
}


def drawn_lines(width: int) -> list[str]:
    console = Console(file=StringIO(), width=width, color_system=None)
    console.print(watch.build_page(STATUS))
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue().splitlines()


def test_the_watch_screen_shows_the_state_of_the_home() -> None:
    text = "\n".join(drawn_lines(100))
    for words in (
        *(
            "serving version 3",
            "4 live, 1 rejected",
            "75% of 12 turns",
            "·▁▅█",
            "5 without a verdict",
            "1 to train on",
        ),
        *("silent for 31 s", "loss/total", "0.25", "4 turns", "4 greedy sampling", "3 no reaction"),
    ):
        assert words in text, words
    assert "tokens" not in text, "only what a glance is for"


@pytest.mark.parametrize("width", [20, 40, 80])
def test_nothing_wraps_in_a_narrow_terminal(width: int) -> None:
    lines = drawn_lines(width)
    assert len(lines) == len(drawn_lines(200))
    assert all(len(line.rstrip()) <= width for line in lines)


def test_bars() -> None:
    assert watch.sparkline([0.0, 0.13, 0.99, 1.0, None]) == "▁▂██·"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of one that has only begun."""
    store = Store.open(tmp_path / "store.db")
    with store.write() as conn:
        policies.ensure_root(conn, base="b", identity="i", at=1.0)
    heartbeats.write_heartbeat(store, "train", "waiting for turns: 0 of 4")
    store.close()
    return tmp_path


@pytest.mark.parametrize(
    ("method", "waiting"), [("binary", 1), ("opd", 1), ("combine", 2), ("sdpo", 1), ("sdft", 1)]
)
def test_the_training_queue_has_the_turns_that_the_method_can_train_on(
    home: Path, method: str, waiting: int
) -> None:
    store = Store.open(home / "store.db")
    with store.write() as conn:
        judged(conn, "score", score=-1)
        judged(conn, "hint", score=None, hints=("Be brief.",))
        judged(conn, "neither", score=0)
        judged(conn, "used", score=1, hints=("Be brief.",))
        turns.mark_untrainable(conn, {"used": Reason(ReasonCode.TOO_STALE, "too stale")})
    for min_turns, full in ((waiting, True), (waiting + 1, False)):
        config = scratch_config(home, {"train.method": method, "train.batch.min_turns": min_turns})
        with store.read() as conn:
            assert watch.collect_page_data(config, conn, 1.0)["queues"]["train"] == (
                waiting,
                "to train on",
            )
            assert (SubprocessSystem(config)._count_untrained(conn) > 0) is full
    store.close()


@contextmanager
def killed_after(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """What did not end when it should must not hold up the others."""
    try:
        yield
    finally:
        process.kill()


# Many times the page, each in a terminal of its own. Ctrl-C comes at the n-th line that the page and rich's screen run;
# and where that is on the way out, before it once more while the page waits for a key. Prints what is wrong, by n.
PRESSED = r"""
import json, os, pty, select, signal, sys, termios
import rich.live
from openclaw_rl.status import watch
from openclaw_rl.settings.load import from_flat

signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background ignores it
config, files = from_flat({"home": sys.argv[1]}), {watch.__file__, rich.live.__file__}
press, wait = lambda: os.kill(os.getpid(), signal.SIGINT), select.select

def page(at):
    lines = 0
    def trace(frame, event, _):
        nonlocal lines
        if frame.f_code.co_filename in files:
            lines += event == "line"
            if (event, lines) == ("line", at):
                press()
            return trace
    def waits(*asked):
        if lines < at:
            press()
        return wait(*asked)
    before, select.select = termios.tcgetattr(0), waits
    try:
        sys.settrace(trace)
        watch.watch_status(config)
    except KeyboardInterrupt:  # before the first line that minds, or after the last
        pass
    finally:
        sys.settrace(None)
    sys.stdout.flush()
    return [lines, termios.tcgetattr(0) == before]

def shown(at):
    reads, writes = os.pipe()
    pid, ours = pty.fork()
    if pid == 0:
        os.write(writes, json.dumps(page(at)).encode())
        os._exit(0)
    os.close(writes)
    seen = b""
    try:
        while got := os.read(ours, 65536):
            seen += got
    except OSError:  # Linux: the other side is closed
        pass
    assert os.waitpid(pid, 0)[1] == 0, seen
    lines, as_before = json.loads(os.read(reads, 99))
    os.close(reads), os.close(ours)
    screens, cursors = ([seen.count(b"\x1b[?" + key + end) for end in (b"h", b"l")] for key in (b"1049", b"25"))
    return lines, as_before and screens[0] == screens[1] and cursors[0] >= cursors[1], bool(screens[0])

lines, whole, taken = shown(10**9)
assert whole and taken
found = {n: shown(n) for n in range(1, lines, 8)}
print(json.dumps([len(found), sum(taken for _, _, taken in found.values()), [n for n in found if not found[n][1]]]))
"""


def test_whenever_ctrl_c_comes_the_terminal_is_as_it_was(home: Path) -> None:
    command = [sys.executable, "-c", PRESSED, str(home)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    pressed, taken, wrong = json.loads(done.stdout)
    assert 0 < taken < pressed, "some before the screen is taken, some after"
    assert not wrong


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_it_ends_on_q_and_on_ctrl_c_and_leaves_the_terminal_as_it_was(
    home: Path, key: bytes
) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "openclaw_rl", "status", "--watch", "--home", str(home)]
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a run in the background ignores it, and so would
    try:  # what it starts
        started = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with started as shown, killed_after(shown):
        os.close(theirs)
        seen = b""
        give_up = time.monotonic() + 240
        while b"waiting for turns" not in seen:
            assert time.monotonic() < give_up, seen
            if select.select([ours], [], [], 0.5)[0]:
                seen += os.read(ours, 65536)
        if key == b"\x03":
            os.kill(
                shown.pid, signal.SIGINT
            )  # no terminal of its own here, so its Ctrl-C is the signal
        else:
            os.write(ours, key)
        while select.select([ours], [], [], 5)[0]:
            try:
                seen += os.read(ours, 65536)
            except OSError:  # Linux: the other side is closed
                break
        assert shown.wait(240) == 0
    os.close(ours)
    assert b"\x1b[?1049h" in seen
    assert b"\x1b[?1049l" in seen, "the screen before is back"
    assert b"Traceback" not in seen


def test_watch_without_a_terminal_is_refused(home: Path) -> None:
    done = CliRunner().invoke(cli, ["status", "--watch", "--home", str(home)])
    assert isinstance(done.exception, OpenClawError)
    assert "--watch needs a terminal" in str(done.exception)
