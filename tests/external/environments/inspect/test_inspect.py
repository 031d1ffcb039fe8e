"""Tasks of Inspect, by the library's own evaluation."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from tests.external.environments.conftest import ROOT, LibraryCommand
from tests.external.environments.recorded_system import RecordedSystem
from tests.system.test_environments import marked_processes
from tests.system.test_parked import wait_for

FILE = str(Path(__file__).parent / "environments" / "capitals.py")
LIMITS = ("--limit-seconds", "90")


@pytest.fixture
def command(system: RecordedSystem, tmp_path: Path) -> LibraryCommand:
    return LibraryCommand(system, tmp_path / "tmp", ROOT / ".inspect-venv/bin/python")


def test_a_task_is_checked_and_played(command: LibraryCommand) -> None:
    source = f"inspect:{FILE}@capitals"
    checked = command.run("check", source, "--parallel", "2", *LIMITS)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert sorted(checked.stdout.splitlines()) == [
        "2 tasks, 0 unfit",
        "sample-1: fit",
        "sample-it: fit",
    ]
    found = command.play(source, "capitals", "--group", "2", "--parallel", "2", *LIMITS)
    assert (found["done"], found["void"]["count"]) == (4, 0), found
    assert all(
        episode.parts == {"includes": episode.reward} for episode in command.episodes("capitals")
    )
    command.assert_captured("capitals")
    command.assert_nothing_left()


def test_the_limit_of_replies_is_scored(command: LibraryCommand) -> None:
    source = f"inspect:{FILE}@twice"
    found = command.play(
        source, "twice", "--group", "2", "--unchecked", "--max-steps", "1", *LIMITS
    )
    assert (found["done"], found["void"]["count"]) == (2, 0), found
    assert {episode.reason for episode in command.episodes("twice")} == {"its limit of replies"}
    command.assert_captured("twice")


def test_a_crash_is_void(command: LibraryCommand) -> None:
    done = command.run(
        "run", f"inspect:{FILE}@dies", "--run", "dies", "--group", "2", "--unchecked", *LIMITS
    )
    assert done.returncode == 1
    assert {episode.outcome for episode in command.episodes("dies")} == {"void"}
    assert all("ended (5)" in episode.reason for episode in command.episodes("dies"))
    command.assert_nothing_left()


def test_a_scorer_that_hangs_is_void_and_a_check_counts_for_one_task(
    command: LibraryCommand,
) -> None:
    done = command.run(
        "run",
        f"inspect:{FILE}@hangs",
        "--run",
        "hangs",
        "--group",
        "2",
        "--unchecked",
        "--limit-seconds",
        "30",
    )
    assert done.returncode == 1
    ended = {(episode.outcome, episode.reason) for episode in command.episodes("hangs")}
    # Whichever is first: the library's limit of scorers, or the limit of the episode, on a machine that starts slowly.
    assert ended <= {
        ("void", "its scorer hung: Time limit exceeded. limit: 12.5 seconds"),
        ("void", "the task or its scorer hung: no end within 30 s"),
    }
    assert ended
    assert command.run("check", f"inspect:{FILE}@hangs?seconds=0", *LIMITS).returncode == 0
    refused = command.run("run", f"inspect:{FILE}@hangs?seconds=1", *LIMITS)
    assert "1 of 1 tasks were not checked on this machine" in refused.stderr, refused.stderr
    command.assert_nothing_left()


def test_a_killed_runner_leaves_nothing(command: LibraryCommand) -> None:
    source = f"inspect:{FILE}@twice"
    options = ("--group", "8", "--parallel", "2", "--unchecked", *LIMITS)
    process = command.start("run", source, "--run", "killed", *options)
    wait_for(lambda: len(marked_processes(command.scratch)) > 1)
    time.sleep(2)
    process.kill()
    process.communicate()
    wait_for(lambda: not list((command.home / "environments" / "runners").iterdir()))
    command.assert_nothing_left()


def test_what_cannot_be_played_is_refused_in_one_line(command: LibraryCommand) -> None:
    for source, options, words in (
        (
            f"inspect:{FILE}",
            ("--python", sys.executable),
            "pip install 'inspect_ai>=0.3.285,<0.4' 'openai>=2'",
        ),
        (f"inspect:{FILE}", (), "has 5 tasks: name one of"),
        (f"inspect:{FILE}@boxed", (), "a sandbox of its own"),
    ):
        done = command.run("run", source, *options)
        assert done.returncode == 1
        assert words in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
