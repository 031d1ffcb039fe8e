"""`openclaw-rl env` at a whole system: episodes, kills at random moments, interruptions, checks."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.system.test_parked import wait_for

from openclaw_rl.common.gateway_address import running_address
from openclaw_rl.store.db import Store
from openclaw_rl.store.episodes import episodes
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

pytestmark = pytest.mark.system

AGENT = """
import json, os, subprocess, sys, time, urllib.request

task = json.load(open(os.environ["TASK_FILE"]))
body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": task["question"]}]}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
for _ in range(task.get("replies", 1)):
    request = urllib.request.Request(url, data=json.dumps(body | {"max_tokens": 8}).encode(), headers=headers)
    with urllib.request.urlopen(request) as response:
        words = json.load(response)["choices"][0]["message"]["content"]
if task.get("daemon"):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
time.sleep(task.get("seconds", 0))
while os.path.exists(task.get("held_by", "")):
    time.sleep(0.05)
if task.get("suicide"):
    os.kill(os.getpid(), 9)
with open("reward.json", "w") as file:
    json.dump({"reward": len(words), "parts": {"characters": len(words)}}, file)
"""
"""An environment without any library."""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SubprocessSystem]:
    with SubprocessSystem(
        scratch_config(tmp_path_factory.mktemp("home"), {"train.method": "groups"})
    ) as made:
        yield made


class EnvironmentCommand:
    """`openclaw-rl env` with an agent, a file of tasks and a folder for temporary files."""

    def __init__(self, system: SubprocessSystem, folder: Path) -> None:
        self.system, self.folder = system, folder
        self.scratch = folder / "tmp"
        self.scratch.mkdir()
        self.agent, self.tasks = folder / "agent.py", folder / "tasks.jsonl"
        self.agent.write_text(AGENT)

    @property
    def home(self) -> Path:
        return self.system.config.home_dir

    def write_tasks(self, *tasks: dict[str, Any]) -> None:
        self.tasks.write_text("".join(json.dumps({"question": f"What is 2 plus {n}?"} | t) + "\n"
                                      for n, t in enumerate(tasks)))  # fmt: skip

    def start(
        self, *options: str, sub: str = "run", program: bool = True, source: str = "command"
    ) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "openclaw_rl",
            "env",
            sub,
            source,
            "--home",
            str(self.home),
        ]
        command += ["--tasks", str(self.tasks), *options]
        command += ["--", sys.executable, str(self.agent)] if program else []
        environment = os.environ | {"TMPDIR": str(self.scratch)}
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    def run(self, *options: str, **more: Any) -> subprocess.CompletedProcess[str]:
        process = self.start(*options, **more)
        out, err = process.communicate(timeout=600)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def played(self, run: str) -> dict[str, Any]:
        """Return the episodes of a run by their id, as the store has them."""
        with Store.open(self.system.config.store_path, create=False) as store, store.read() as conn:
            ids = [file.stem for file in (self.home / "environments" / "runs").glob(f"{run}.json")]
            assert ids == [run]
            return {e.id: e for e in episodes_of_run(conn, run)}

    def assert_nothing_left(self) -> None:
        assert marked_processes(self.scratch) == []
        assert list(self.scratch.glob("openclaw-*")) == []
        assert list((self.home / "environments" / "runners").iterdir()) == []


def episodes_of_run(conn: Any, run: str) -> list[Any]:
    rows = conn.exec_driver_sql("select id from episodes where id like ?", (f"{run}-%",)).all()
    return [episodes.get_episode(conn, row.id) for row in rows]


def marked_processes(scratch: Path, variable: str = "EPISODE_FOLDER") -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and f"{variable}={scratch}".encode() in (entry / "environ").read_bytes()
            ):
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def is_reaper(pid: int) -> bool:
    return b"environments.reaper" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.fixture
def command(system: SubprocessSystem, tmp_path: Path) -> EnvironmentCommand:
    return EnvironmentCommand(system, tmp_path)


def test_a_run_plays_groups_and_reports_them(command: EnvironmentCommand) -> None:
    command.write_tasks({"id": "a"}, {"id": "b"}, {"id": "c", "split": "held_out"})
    done = command.run(
        "--group",
        "3",
        "--parallel",
        "3",
        "--run",
        "first",
        "--unchecked",
        "--json",
        "--split",
        "all",
    )
    assert done.returncode == 0, done.stderr
    assert "2 tasks were not checked" in done.stderr
    assert "a: 3 done, 0 void, mean reward" in done.stderr
    summary = json.loads(done.stdout)
    assert {task: found["done"] for task, found in summary["tasks"].items()} == {
        "a": 3,
        "b": 3,
        "c": 3,
    }
    played = command.played("first")
    assert len(played) == 9
    assert {e.split for e in played.values() if e.task == "c"} == {"held_out"}
    assert all(e.reward == e.parts["characters"] for e in played.values())
    again = command.run("--group", "3", "--run", "first", "--unchecked", "--split", "all")
    assert again.returncode == 0, again.stderr
    assert "9 of them earlier" in again.stdout
    assert len(command.played("first")) == 9
    other = command.run("--group", "4", "--run", "first", "--unchecked", "--split", "all")
    assert other.returncode == 1
    assert "begun with other settings (group: 3, now 4)" in other.stderr
    command.assert_nothing_left()


def test_a_limit_of_replies_and_a_signal(command: EnvironmentCommand) -> None:
    command.write_tasks({"id": "long", "replies": 3}, {"id": "killed", "suicide": True})
    done = command.run(
        "--group",
        "2",
        "--parallel",
        "4",
        "--run",
        "limits",
        "--unchecked",
        "--set",
        "rollout.episode_steps=2",
    )
    assert done.returncode == 0, done.stderr
    played = command.played("limits").values()
    assert {(e.outcome, e.reward) for e in played if e.task == "long"} == {("done", 0.0)}, (
        "410 is the policy's fault"
    )
    assert {(e.outcome, e.reason) for e in played if e.task == "killed"} == {
        ("void", "the program was ended by signal 9")
    }
    command.assert_nothing_left()


@pytest.mark.parametrize("seed", range(3))
def test_a_runner_that_is_killed_leaves_nothing(command: EnvironmentCommand, seed: int) -> None:
    command.write_tasks(*({"id": f"t{n}", "seconds": 0.5, "daemon": True} for n in range(8)))
    options = ("--group", "2", "--parallel", "4", "--run", f"killed-{seed}", "--unchecked")
    process = command.start(*options)
    wait_for(lambda: len(marked_processes(command.scratch)) > 0)
    time.sleep(random.Random(seed).uniform(0, 2))
    process.kill()
    process.communicate()
    wait_for(lambda: not list((command.home / "environments" / "runners").iterdir()))
    command.assert_nothing_left()
    wait_for(
        lambda: all(e.settled_at is not None for e in command.played(f"killed-{seed}").values())
    )
    before = command.played(f"killed-{seed}")
    assert before
    assert {e.outcome for e in before.values()} <= {"done", "void"}, "none is running"
    assert {e.reason for e in before.values() if e.outcome == "void"} == {"the runner was killed"}

    command.write_tasks(*({"id": f"t{n}", "seconds": 0.5, "daemon": True} for n in range(8)))
    done = command.run(*options)
    assert done.returncode == 0, done.stderr
    after = command.played(f"killed-{seed}")
    assert len(after) == 16
    assert {id_: after[id_] for id_ in before} == before, "what had ended was not played again"
    assert all(after[id_].outcome == "done" for id_ in after.keys() - before.keys())
    command.assert_nothing_left()


def test_what_a_runner_and_its_reaper_left_is_cleaned_up_by_the_next_run(
    command: EnvironmentCommand,
) -> None:
    command.write_tasks({"id": "x", "seconds": 60, "daemon": True})
    process = command.start("--group", "2", "--parallel", "2", "--run", "both", "--unchecked")
    wait_for(lambda: len(marked_processes(command.scratch)) >= 4)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(next(pid for pid in map(int, children) if is_reaper(pid)), signal.SIGKILL)
    process.kill()
    process.communicate()
    assert marked_processes(command.scratch)
    command.write_tasks({"id": "y"})
    done = command.run("--group", "2", "--unchecked")
    assert done.returncode == 0, done.stderr
    assert {e.reason for e in command.played("both").values()} == {"the runner was killed"}
    command.assert_nothing_left()


def test_an_interrupted_run_is_continued(command: EnvironmentCommand) -> None:
    hold = command.folder / "hold"
    command.write_tasks(*({"id": f"i{n}", "seconds": 0.4, "held_by": str(hold)} for n in range(6)))
    options = ("--group", "2", "--parallel", "2", "--run", "interrupted", "--unchecked")
    process = command.start(*options)
    wait_for(lambda: len(marked_processes(command.scratch)) > 0)

    def count_played(outcome: str | None) -> int:
        return [e.outcome for e in command.played("interrupted").values()].count(outcome)

    wait_for(lambda: count_played("done") > 0)
    hold.touch()
    time.sleep(1)
    wait_for(lambda: count_played(None) == 2 and len(marked_processes(command.scratch)) == 2)
    done_before = count_played("done")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "--run interrupted continues the run" in err
    command.assert_nothing_left()
    before = command.played("interrupted").values()
    assert [e.reason for e in before if e.outcome == "void"] == ["the run was interrupted"] * 2
    assert len(before) == done_before + 2
    hold.unlink()
    done = command.run(*options)
    assert done.returncode == 0, done.stderr
    assert (count_played("done"), count_played("void")) == (10, 2)


def test_episodes_of_a_gateway_that_died_are_void(command: EnvironmentCommand) -> None:
    command.write_tasks({"id": "g", "seconds": 3})
    process = command.start("--group", "2", "--parallel", "2", "--run", "gateway", "--unchecked")
    wait_for(lambda: len(marked_processes(command.scratch)) == 2)
    address = running_address(command.home)
    assert address is not None
    os.kill(address.pid, signal.SIGKILL)
    process.communicate(timeout=600)
    for episode in command.played("gateway").values():
        assert episode.outcome == "void"
        assert episode.reason.startswith("the gateway was restarted during the episode")
    command.assert_nothing_left()


def test_a_runner_whose_gateway_stays_away_leaves_nothing(tmp_path: Path) -> None:
    config = scratch_config(tmp_path / "home", {"train.method": "groups"})
    with SubprocessSystem(config) as system:
        command = EnvironmentCommand(system, tmp_path)
        command.write_tasks({"id": "g", "seconds": 2, "daemon": True})
        process = command.start("--group", "2", "--parallel", "2", "--run", "gone", "--unchecked")
        wait_for(lambda: len(marked_processes(command.scratch)) >= 2)
    assert process.wait(timeout=600) == 1
    assert marked_processes(command.scratch) == []
    assert list(command.scratch.glob("openclaw-*")) == []
    assert list((command.home / "environments" / "runners").glob("gone/*.json")), (
        "the reaper posts their outcomes"
    )
    reapers = [pid for pid in marked_processes(command.scratch, "TMPDIR") if is_reaper(pid)]
    assert len(reapers) == 1
    os.kill(reapers[0], signal.SIGKILL)
    _, err = process.communicate()
    assert "did not answer" in err


WORKER = """
import json, subprocess, sys, threading, urllib.request

def play(number, asked):
    body = {"model": asked["model"], "messages": [{"role": "user", "content": asked["data"]["question"]}]}
    headers = {"Authorization": "Bearer " + asked["api_key"], "Content-Type": "application/json"}
    url = asked["base_url"] + "/chat/completions"
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(body | {"max_tokens": 8}).encode(), headers)).read()
    if not asked["data"].get("silent"):
        print(json.dumps({"id": number, "outcome": {"reward": 0.5}}), flush=True)

subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "play" in asked:
        threading.Thread(target=play, args=(asked["id"], asked["play"]), daemon=True).start()
"""


def test_one_process_plays_many_episodes(command: EnvironmentCommand) -> None:
    command.agent.write_text(WORKER)
    command.write_tasks({"id": "a"}, {"id": "b"})
    done = command.run(
        "--group",
        "4",
        "--parallel",
        "8",
        "--unchecked",
        "--run",
        "process",
        "--json",
        source="process",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tasks"] == {
        task: {"done": 4, "mean_reward": 0.5} for task in ("a", "b")
    }
    command.assert_nothing_left()
    command.write_tasks({"id": "c", "silent": True})
    options = ("--group", "2", "--parallel", "2", "--unchecked", "--run", "silent")
    process = command.start(*options, source="process")
    wait_for(lambda: len(marked_processes(command.scratch)) == 2)
    process.kill()
    process.communicate()
    wait_for(lambda: not list((command.home / "environments" / "runners").iterdir()))
    command.assert_nothing_left()


def test_tasks_are_checked_before_they_are_trained_on(command: EnvironmentCommand) -> None:
    command.write_tasks(
        {"id": "good"}, {"id": "bad", "nop": "true"}, {"id": "kept", "split": "held_out"}
    )
    refused = command.run("--group", "2")
    assert refused.returncode == 1
    assert "2 of 2 tasks were not checked on this machine: good, bad" in refused.stderr
    checked = command.run("--oracle", "true", "--nop", "false", sub="check", program=False)
    assert checked.returncode == 1, checked.stderr
    assert checked.stdout.splitlines() == [
        "good: fit",
        "bad: unfit: doing nothing got 1, not less than the oracle",
        "kept: fit",
        "3 tasks, 1 unfit",
    ]
    done = command.run("--group", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert "1 tasks are left out, because their check failed: bad" in done.stderr
    assert list(json.loads(done.stdout)["tasks"]) == ["good"]
    command.assert_nothing_left()


def test_errors_are_one_line(command: EnvironmentCommand, tmp_path: Path) -> None:
    command.write_tasks({"id": "a"})
    for options, more, words in (
        (("--unchecked",), {"program": False}, "no program: give it after `--`"),
        (("--unchecked", "--run", "a/b"), {}, "expected 1 to 48 letters"),
        (("--env", "NO_SUCH"), {}, "no such variable"),
        (("--split", "held_out"), {}, "no task to play in the split held_out"),
        (("--home", str(tmp_path / "empty"), "--unchecked"), {}, "no gateway runs on"),
    ):
        done = command.run(*options, **more)
        assert done.returncode == 1
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
