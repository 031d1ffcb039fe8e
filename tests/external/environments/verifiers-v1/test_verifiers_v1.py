"""Environments of verifiers 0.4 with reasoning-gym, by the library's own entry points."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.external.environments.conftest import ROOT, LibraryCommand
from tests.external.environments.recorded_system import RecordedSystem
from tests.system.test_environments import marked_processes
from tests.system.test_parked import wait_for

ENVIRONMENTS = Path(__file__).parent / "environments"
LEGS = f"verifiers-v1:{ENVIRONMENTS / 'legs.py'}"
GUESSING = f"verifiers-v1:{ENVIRONMENTS / 'guessing.py'}"
LIMITS = ("--limit-seconds", "120")


@pytest.fixture
def command(system: RecordedSystem, tmp_path: Path) -> LibraryCommand:
    return LibraryCommand(system, tmp_path / "tmp", ROOT / ".verifiers-v1-venv/bin/python")


def test_reasoning_gym_is_checked_and_played(command: LibraryCommand) -> None:
    source = f"{LEGS}?size=3"
    checked = command.run("check", source, *LIMITS)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.splitlines()[-1] == "3 tasks, 0 unfit"
    command.assert_nothing_left()
    found = command.play(
        source,
        "legs",
        "--group",
        "2",
        "--parallel",
        "3",
        "--held-out",
        "0.4",
        "--split",
        "all",
        *LIMITS,
    )
    assert (found["done"], found["void"]["count"]) == (6, 0), found
    for episode in command.episodes("legs"):
        assert set(episode.parts) == {"correct", "length"}
        assert episode.reward == pytest.approx(episode.parts["correct"])
    command.assert_captured("legs")
    command.assert_nothing_left()


def test_other_code_makes_other_tasks(command: LibraryCommand, tmp_path: Path) -> None:
    copy = tmp_path / "other_legs.py"
    copy.write_text((ENVIRONMENTS / "legs.py").read_text())
    source = f"verifiers-v1:{copy}?size=1"
    assert command.run("check", source, *LIMITS).returncode == 0
    copy.write_text(copy.read_text() + "\n# another reward\n")
    done = command.run("run", source, *LIMITS)
    assert done.returncode == 1
    assert "1 of 1 tasks were not checked on this machine" in done.stderr


def test_many_replies_and_their_limit(command: LibraryCommand) -> None:
    checked = command.run("check", GUESSING, *LIMITS)
    assert "task-0: not checked: it has no answer to replay" in checked.stdout, checked.stderr
    options = ("--group", "2", "--unchecked", *LIMITS)
    found = command.play(GUESSING, "three", *options)
    assert found["tasks"]["task-0"] == {"done": 2, "mean_reward": 3.0}, found
    command.assert_captured("three", steps=3)
    limited = command.play(GUESSING, "limited", "--max-steps", "2", *options)
    assert limited["tasks"]["task-0"] == {"done": 2, "mean_reward": 2.0}, limited
    assert {episode.reason for episode in command.episodes("limited")} == {"max_turns"}
    command.assert_captured("limited", steps=2)
    command.assert_nothing_left()


def test_a_full_context_is_done_and_a_first_prompt_that_does_not_fit_is_void(
    command: LibraryCommand,
) -> None:
    options = ("--group", "2", "--unchecked", *LIMITS)
    found = command.play(f"{GUESSING}?later=9000", "full", *options)
    assert found["tasks"]["task-0"] == {"done": 2, "mean_reward": 1.0}, found
    command.assert_captured("full", steps=1)
    assert command.run("run", f"{GUESSING}?begin=9000", "--run", "first", *options).returncode == 1
    assert {episode.outcome for episode in command.episodes("first")} == {"void"}
    assert all("it got no reply" in episode.reason for episode in command.episodes("first"))


@pytest.mark.parametrize(
    ("fault", "reason", "limits"),
    [
        ("die", "the process ended", LIMITS),
        ("raise", "the tool of the verifier", LIMITS),
        ("hang", "the environment or a reward function hung", ("--limit-seconds", "30")),
    ],
)
def test_a_failure_of_the_environment_is_void_and_unfit(
    command: LibraryCommand, fault: str, reason: str, limits: tuple[str, ...]
) -> None:
    source = f"{LEGS}?size=1&fault={fault}"
    checked = command.run("check", source, *limits)
    assert checked.returncode == 1
    assert "1 tasks, 1 unfit" in checked.stdout
    assert reason in checked.stdout
    run = (
        "--run",
        f"fault-{fault}",
        "--held-out",
        "1",
        "--split",
        "held_out",
        "--group",
        "2",
        *limits,
    )
    assert command.run("run", source, *run).returncode == 1, "no episode is done"
    for episode in command.episodes(f"fault-{fault}"):
        assert episode.outcome == "void"
        assert reason in episode.reason
    command.assert_nothing_left()


def test_a_killed_runner_leaves_nothing(command: LibraryCommand) -> None:
    process = command.start(
        "run",
        GUESSING,
        "--run",
        "killed",
        "--group",
        "16",
        "--parallel",
        "2",
        "--unchecked",
        *LIMITS,
    )
    wait_for(lambda: len(marked_processes(command.scratch)) > 2)  # a chat program, too
    time.sleep(2)
    process.kill()
    process.communicate()
    wait_for(lambda: not list((command.home / "environments" / "runners").iterdir()))
    command.assert_nothing_left()
    assert {episode.outcome for episode in command.episodes("killed")} <= {"done", "void"}


def test_what_cannot_be_played_is_refused_in_one_line(command: LibraryCommand) -> None:
    for source, options, words in (
        ("verifiers-v1", (), "nothing is named"),
        (LEGS, ("--python", "python3"), "python -m pip install 'verifiers>=0.4,<0.5'"),
        ("verifiers-v1:no-such-taskset", (), "no taskset 'no-such-taskset'"),
        (f"verifiers-v1:{ENVIRONMENTS / 'refused.py'}", (), "needs a container"),
        (f"verifiers-v1:{ENVIRONMENTS / 'pair.py'}", (), "has the agents one, other"),
        (f"verifiers-v1:{ENVIRONMENTS / 'endless.py'}", (), "has no end"),
        (f"verifiers:{ENVIRONMENTS / 'legs.py'}", (), "the source is verifiers-v1"),
    ):
        done = command.run("run", source, *options)
        assert done.returncode == 1
        assert words in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
