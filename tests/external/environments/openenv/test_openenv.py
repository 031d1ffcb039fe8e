"""A real OpenEnv server on loopback, by the library's generic client."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.external.environments.conftest import ROOT, LibraryCommand
from tests.external.environments.recorded_system import RecordedSystem
from tests.system.test_parked import wait_for

from openclaw_rl.common.sockets import free_port

PYTHON = ROOT / ".openenv-venv/bin/python"
LIMITS = ("--limit-seconds", "60")


@pytest.fixture
def command(system: RecordedSystem, tmp_path: Path) -> LibraryCommand:
    return LibraryCommand(system, tmp_path / "tmp", PYTHON)


@contextmanager
def serving(*options: str) -> Iterator[str]:
    port = free_port()
    with subprocess.Popen(
        [PYTHON, Path(__file__).parent / "counting_server.py", str(port), *options]
    ) as server:
        try:
            wait_for(lambda: answers(f"http://127.0.0.1:{port}/health"))
            yield f"openenv:http://127.0.0.1:{port}"
        finally:
            server.kill()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def test_a_server_is_played_with_its_step_rewards(command: LibraryCommand) -> None:
    with serving() as source:
        checked = command.run("check", f"{source}?seeds=2", *LIMITS)
        assert checked.returncode == 1
        assert "2 tasks, 0 unfit, 2 not checked" in checked.stdout
        found = command.play(
            f"{source}?seeds=2", "say", "--group", "2", "--parallel", "4", "--unchecked", *LIMITS
        )
        assert found["tasks"]["seed-0"] == {"done": 2, "mean_reward": pytest.approx(0.75)}, found
        command.assert_captured("say", steps=3)
        assert [[step.reward for step in episode.steps] for episode in command.episodes("say")] == [
            [0.25] * 3
        ] * 4
        limits = ("--group", "2", "--unchecked", "--max-steps", "2", *LIMITS)
        short = command.play(f"{source}?seeds=1", "short", *limits)
        assert short["tasks"]["seed-0"] == {"done": 2, "mean_reward": pytest.approx(0.5)}
    command.assert_nothing_left()


def test_a_server_that_dies_is_void(command: LibraryCommand) -> None:
    with serving("dies") as source:
        done = command.run(
            "run", f"{source}?seeds=1", "--run", "died", "--group", "2", "--unchecked", *LIMITS
        )
    assert done.returncode == 1
    assert {episode.outcome for episode in command.episodes("died")} == {"void"}
    command.assert_nothing_left()


def test_a_server_that_hangs_is_void(command: LibraryCommand) -> None:
    with serving("hangs") as source:
        limits = ("--group", "2", "--unchecked", "--limit-seconds", "20")
        done = command.run("run", f"{source}?seeds=1", "--run", "hung", *limits)
    assert done.returncode == 1
    found = {(episode.outcome, episode.reason) for episode in command.episodes("hung")}
    reason = (
        "the process of the environment failed: the server did not answer within the limit of 20 s"
    )
    assert found == {("void", reason)}


def test_a_killed_runner_leaves_nothing(command: LibraryCommand) -> None:
    with serving() as source:
        options = ("--group", "64", "--parallel", "2", "--unchecked", *LIMITS)
        process = command.start("run", f"{source}?seeds=1", "--run", "killed", *options)
        wait_for(lambda: list((command.home / "environments" / "runners").iterdir()))
        time.sleep(3)
        process.kill()
        process.communicate()
        wait_for(lambda: not list((command.home / "environments" / "runners").iterdir()))
    command.assert_nothing_left()


def test_what_cannot_be_played_is_refused_in_one_line(command: LibraryCommand) -> None:
    for source, options, words in (
        (
            "openenv:http://127.0.0.1:1",
            ("--python", sys.executable),
            "pip install 'openenv>=0.10,<0.11'",
        ),
        ("openenv:http://127.0.0.1:1", (), "no OpenEnv server answers"),
        ("openenv:https://example.org", (), "expected a server on this machine"),
    ):
        done = command.run("run", source, *options)
        assert done.returncode == 1
        assert words in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
