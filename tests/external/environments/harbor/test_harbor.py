"""Harbor's own runner with Terminus-2, oracle and nop, unmodified, in boxes of this machine."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.external.environments.conftest import ROOT, LibraryCommand
from tests.external.environments.recorded_system import RecordedSystem
from tests.external.openclaw.scripted_system import CONTEXT
from tests.system.test_parked import wait_for

from openclaw_rl.sandbox.box_lease import sweep_leases

PYTHON = ROOT / ".harbor-venv/bin/python"
GREETING = ROOT / "tasks/terminal/greeting-file"
TERMINUS = ("--agent", "terminus-2", "--limit-seconds", "60", "--group", "2", "--parallel", "2")


def work(*commands: str, done: bool = True) -> str:
    """A reply as Terminus-2 wants it."""
    keys = [{"keystrokes": f"{command}\n", "duration": 0.5} for command in commands]
    return json.dumps(
        {"analysis": "See the screen.", "plan": "Work.", "commands": keys, "task_complete": done}
    )


SOLUTION = "printf 'Hello, %s!\\n' \"$(cat name.txt)\" > greeting.txt"
FORGERIES = (
    "mkdir -p /tests; printf 'echo 1 >/logs/verifier/reward.txt' > /tests/test.sh",
    "echo 1 > /logs/verifier/reward.txt",
    "(while sleep 0.1; do echo 1 > /logs/verifier/reward.txt; done) & disown",
)
SCRIPT = [
    {"when": "Are you sure you want to mark", "say": work()},
    {"when": "VARIANT forge", "say": work(*FORGERIES)},
    {"when": "VARIANT endless", "say": work("date", done=False)},
    {"when": "Create the file `/app/greeting.txt`", "say": work(SOLUTION)},
    {"when": "New Terminal Output", "say": work("date", done=False)},
]
"""Replies of the policy, by the words of the last message."""


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedSystem]:
    with RecordedSystem(tmp_path_factory.mktemp("home"), SCRIPT) as made:
        yield made


@pytest.fixture
def command(scripted: RecordedSystem) -> Iterator[LibraryCommand]:
    folder = Path(tempfile.mkdtemp(prefix="boxes-", dir="/tmp"))  # boxes of root pass through it
    folder.chmod(0o711)
    made = LibraryCommand(scripted, folder / "tmp", PYTHON)
    made.scratch.chmod(0o711)
    yield made
    shutil.rmtree(folder)


def make_variant(tmp_path: Path, words: str, test: str | None = None) -> str:
    """The task with other words in its instruction, and perhaps another test; return its source."""
    folder = tmp_path / "task"
    shutil.copytree(GREETING, folder)
    instruction = (folder / "instruction.md").read_text()
    (folder / "instruction.md").write_text(f"VARIANT {words}\n\n{instruction}")
    if test is not None:
        (folder / "tests/test.sh").write_text(test)
    return f"harbor:{folder}"


def test_a_shipped_task_is_checked_and_solved(command: LibraryCommand) -> None:
    source = f"harbor:{GREETING}"
    assert "were not checked on this machine" in command.run("run", source, *TERMINUS).stderr
    checked = command.run("check", source)
    assert checked.stdout.splitlines() == ["greeting-file: fit", "1 tasks, 0 unfit"], checked.stderr
    command.assert_nothing_left()
    found = command.play(source, "solved", *TERMINUS)
    assert (found["done"], found["mean_reward"], found["void"]["count"]) == (2, 1.0, 0), found
    command.assert_captured("solved", steps=2)
    command.assert_nothing_left()


def test_the_verifier_works_in_a_box_that_the_policy_never_saw(
    command: LibraryCommand, tmp_path: Path
) -> None:
    found = command.play(make_variant(tmp_path, "forge"), "forged", "--unchecked", *TERMINUS)
    assert (found["done"], found["mean_reward"], found["void"]["count"]) == (2, 0.0, 0), found
    command.assert_nothing_left()


def test_the_end_of_the_replies_is_done_with_what_it_left(
    command: LibraryCommand, tmp_path: Path
) -> None:
    source = make_variant(tmp_path, "endless")
    found = command.play(source, "limited", "--unchecked", "--max-steps", "2", *TERMINUS)
    assert (found["done"], found["mean_reward"]) == (2, 0.0), found
    assert {episode.reason for episode in command.episodes("limited")} == {"its limit of replies"}
    command.assert_captured("limited", steps=2)


def test_the_times_of_agent_and_verifier_are_done(command: LibraryCommand, tmp_path: Path) -> None:
    source = make_variant(tmp_path, "endless", test="#!/bin/sh\nsleep 90\n")
    settings = tmp_path / "task/task.toml"
    settings.write_text(settings.read_text().replace("timeout_sec = 60.0", "timeout_sec = 5.0"))
    found = command.play(
        source, "slow", "--unchecked", *("20" if word == "60" else word for word in TERMINUS)
    )
    assert (found["done"], found["mean_reward"]) == (2, 0.0), found
    for episode in command.episodes("slow"):
        assert "the verifier did not end within 5 s; AgentTimeoutError" in episode.reason


def test_what_the_agent_did_not_cause_is_void_and_unfit(
    command: LibraryCommand, tmp_path: Path
) -> None:
    source = make_variant(tmp_path, "without a reward", test="#!/bin/sh\nexit 0\n")
    checked = command.run("check", source)
    assert checked.returncode == 1
    assert "oracle: RewardFileNotFoundError" in checked.stdout
    done = command.run("run", source, "--run", "void", "--split", "all", "--unchecked", *TERMINUS)
    assert done.returncode == 1, "the task is unfit"
    assert "no task to play" in done.stderr
    command.assert_nothing_left()


def test_a_first_prompt_that_does_not_fit_is_void(command: LibraryCommand, tmp_path: Path) -> None:
    source = make_variant(tmp_path, "long " + "word " * CONTEXT)
    done = command.run("run", source, "--run", "long", "--unchecked", *TERMINUS)
    assert done.returncode == 1
    for episode in command.episodes("long"):
        assert episode.outcome == "void"
        assert "the first prompt of the agent does not fit" in episode.reason


def test_a_killed_runner_leaves_nothing(
    command: LibraryCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_variant(tmp_path, "endless")
    process = command.start("run", source, "--run", "killed", "--unchecked", *TERMINUS)
    wait_for(command.list_boxes)
    time.sleep(2)
    process.kill()
    process.communicate()
    wait_for(lambda: not list((command.home / "environments" / "runners").iterdir()))
    monkeypatch.setattr(tempfile, "tempdir", str(command.scratch))
    sweep_leases()  # as the next owner of a box does
    command.assert_nothing_left()
    assert {episode.outcome for episode in command.episodes("killed")} <= {"done", "void"}


def test_what_cannot_be_played_is_refused_in_one_line(command: LibraryCommand) -> None:
    source = f"harbor:{GREETING}"
    for options, words in (
        ((*TERMINUS, "--python", sys.executable), "python -m pip install 'harbor>=0.25,<0.26'"),
        (
            ("--agent", "claude-code"),
            "expected one of tools, text, plain, program, terminus-2, oracle, nop",
        ),
        (("--agent", "text"), "needs no --python"),
    ):
        done = command.run("run", source, *options)
        assert done.returncode == 1
        assert words in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
