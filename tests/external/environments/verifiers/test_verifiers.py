"""Environments of verifiers 0.3 with reasoning-gym, by the library's own entry points."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from tests.external.environments.conftest import ROOT, LibraryCommand
from tests.external.environments.recorded_system import RecordedSystem
from tests.system.test_environments import marked_processes
from tests.system.test_parked import wait_for

ENVIRONMENTS = Path(__file__).parent / "environments"
SUMS = str(ENVIRONMENTS / "sums.py")
GYM = "verifiers:reasoning-gym?gym=leg_counting&num_train_examples=4&num_eval_examples=2"
LIMITS = ("--limit-seconds", "60")


@pytest.fixture
def command(system: RecordedSystem, tmp_path: Path) -> LibraryCommand:
    return LibraryCommand(system, tmp_path / "tmp", ROOT / ".verifiers-venv/bin/python")


def test_reasoning_gym_is_checked_and_played(command: LibraryCommand) -> None:
    refused = command.run("run", GYM)
    assert refused.returncode == 1
    assert "4 of 4 tasks were not checked on this machine: train-0" in refused.stderr
    checked = command.run("check", GYM, *LIMITS)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.splitlines()[-1] == "6 tasks, 0 unfit"
    command.assert_nothing_left()
    found = command.play(GYM, "gym", "--group", "4", "--parallel", "8", "--split", "all", *LIMITS)
    assert (found["done"], found["void"]["count"]) == (24, 0), found
    played = command.episodes("gym")
    assert sum(episode.split == "held_out" for episode in played) == 8
    assert all("check_answer_reward_func" in episode.parts for episode in played)
    command.assert_captured("gym")
    command.assert_nothing_left()


def test_many_replies_with_step_rewards(command: LibraryCommand) -> None:
    source = f"verifiers:{ENVIRONMENTS / 'guessing.py'}"
    checked = command.run("check", source, *LIMITS)
    assert checked.returncode == 1
    assert "train-0: not checked: it has no answer to replay" in checked.stdout
    assert "1 tasks, 0 unfit, 1 not checked" in checked.stdout
    assert "were not checked on this machine" in command.run("run", source).stderr
    found = command.play(source, "steps", "--group", "2", "--unchecked", *LIMITS)
    assert found["tasks"]["train-0"] == {"done": 2, "mean_reward": pytest.approx(0.3)}
    command.assert_captured("steps", steps=3)
    assert [[step.reward for step in episode.steps] for episode in command.episodes("steps")] == [
        [0.25, 0.25]
    ] * 2
    limited = command.play(
        source, "limited", "--group", "2", "--unchecked", "--max-steps", "2", *LIMITS
    )
    assert limited["tasks"]["train-0"] == {"done": 2, "mean_reward": pytest.approx(0.2)}, (
        "410 is no failure of ours"
    )
    command.assert_nothing_left()


def test_a_reward_is_the_number_that_the_environment_gave(command: LibraryCommand) -> None:
    found = command.play(f"verifiers:{SUMS}", "sums", "--group", "4", "--unchecked", *LIMITS)
    assert found["done"] == 12
    for episode in command.episodes("sums"):
        assert episode.reward == pytest.approx(
            episode.parts["has_sum"] + 0.001 * episode.parts["length"]
        )
    command.assert_captured("sums")


@pytest.mark.parametrize(
    ("fault", "reason", "limits"),
    [
        ("die", "the process ended", LIMITS),
        ("raise", "the tool of the verifier", LIMITS),
        ("hang", "a reward function hung", ("--limit-seconds", "12")),
    ],
)
def test_a_failure_of_the_environment_is_void_and_unfit(
    command: LibraryCommand, fault: str, reason: str, limits: tuple[str, ...]
) -> None:
    source = f"verifiers:{SUMS}?fault={fault}&number=1"
    checked = command.run("check", source, *limits)
    assert checked.returncode == 1
    assert "2 tasks, 2 unfit" in checked.stdout
    assert reason in checked.stdout
    done = command.run(
        "run", source, "--run", f"fault-{fault}", "--split", "held_out", "--group", "2", *limits
    )
    assert done.returncode == 1, "no episode is done"
    for episode in command.episodes(f"fault-{fault}"):
        assert episode.outcome == "void"
        assert reason in episode.reason, episode
    command.assert_nothing_left()
    assert command.run("check", f"verifiers:{SUMS}?number=1", *LIMITS).returncode == 0, (
        "it works again"
    )


def test_a_check_counts_for_one_environment_with_its_arguments(
    command: LibraryCommand, tmp_path: Path
) -> None:
    for folder, change in (("good", ""), ("same", ""), ("bad", "# another rubric\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "sums.py").write_text(Path(SUMS).read_text() + change)
    good = f"verifiers:{tmp_path / 'good' / 'sums.py'}?number=1"
    assert command.run("check", good, *LIMITS).returncode == 0
    for admitted in (good, good.replace("/good/", "/same/")):
        assert (
            command.play(admitted, f"one-{'same' in admitted}", "--group", "2", *LIMITS)["done"]
            == 2
        )
    for other in (good.replace("/good/", "/bad/"), f"{good}&fault=none"):
        refused = command.run("run", other, "--group", "2", *LIMITS)
        assert refused.returncode == 1
        assert "1 of 1 tasks were not checked on this machine" in refused.stderr, refused.stderr


def test_a_killed_runner_leaves_nothing(command: LibraryCommand) -> None:
    source = f"verifiers:{ENVIRONMENTS / 'guessing.py'}"
    process = command.start(
        "run", source, "--run", "killed", "--group", "64", "--unchecked", *LIMITS
    )
    wait_for(lambda: len(marked_processes(command.scratch)) > 0)
    wait_for(lambda: list((command.home / "environments" / "runners").iterdir()))
    time.sleep(4)
    process.kill()
    process.communicate()
    wait_for(lambda: not list((command.home / "environments" / "runners").iterdir()))
    command.assert_nothing_left()
    assert {episode.outcome for episode in command.episodes("killed")} <= {"done", "void"}


def test_what_cannot_be_played_is_refused_in_one_line(command: LibraryCommand) -> None:
    for source, options, words in (
        (GYM, ("--python", sys.executable), "python -m pip install 'verifiers[rg]>=0.3.1,<0.4'"),
        (GYM, ("--python", "no-such-python"), "no such program"),
        ("verifiers", (), "nothing is named"),
        ("verifiers:no-such-environment", (), "no environment 'no-such-environment'"),
        ("verifiers:reasoning-gym", (), "no data set"),
        (f"verifiers:{ENVIRONMENTS / 'remote.py'}", (), "runs its code in a remote sandbox"),
    ):
        done = command.run("run", source, *options)
        assert done.returncode == 1
        assert words in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert list(command.scratch.glob("openclaw-*")) == []
