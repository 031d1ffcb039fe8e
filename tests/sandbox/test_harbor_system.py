"""`openclaw-rl env` with task folders at a whole system: checks, episodes on the starter policy, and a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from openclaw_rl.sandbox.box_lease import leases_folder
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

TASK = Path(__file__).parents[2] / "tasks" / "terminal" / "greeting-file"
pytestmark = pytest.mark.timeout(600)


def start(home: Path, folder: Path, sub: str, *options: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "openclaw_rl",
        "env",
        sub,
        f"harbor:{TASK}",
        "--home",
        str(home),
        *options,
    ]
    environment = os.environ | {"TMPDIR": str(folder)}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def test_training_on_a_task_needs_no_home(public_folder: Path, tmp_path: Path) -> None:
    options = ("--group", "2", "--agent", "text", "--limit-seconds", "60")
    command = start(tmp_path / "home", public_folder, "train", *options)
    out, err = command.communicate(timeout=300)
    assert command.returncode == 0, err
    assert "greeting-file: fit" in out
    assert "2 done, 0 void" in out + err


def test_a_task_is_checked_played_and_leaves_nothing(public_folder: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with SubprocessSystem(scratch_config(home, {"train.method": "groups"})) as system:
        run = ("--group", "2", "--parallel", "2", "--agent", "text", "--max-steps", "2", "--json")
        out, err = start(home, public_folder, "run", *run).communicate(timeout=200)
        assert "were not checked on this machine" in err
        out, err = start(home, public_folder, "check").communicate(timeout=200)
        assert out.splitlines() == ["greeting-file: fit", "1 tasks, 0 unfit"], err
        out, err = start(home, public_folder, "run", *run, "--run", "first").communicate(
            timeout=300
        )
        found = json.loads(out)
        assert (found["done"], found["mean_reward"], found["void"]["count"]) == (2, 0.0, 0), err
        with Store.open(system.config.store_path, create=False) as store, store.read() as conn:
            query = "select e.outcome, count(x.id) from episodes e join exchanges x on x.episode = e.id "
            rows = conn.exec_driver_sql(query + "where e.id like 'first-%' group by e.id").all()
        assert [row[0] for row in rows] == ["done", "done"]
        assert all(1 <= row[1] <= 2 for row in rows), "every reply belongs to its episode"

        killed = start(home, public_folder, "run", *run, "--run", "second", "--limit-seconds", "30")
        end = time.monotonic() + 240
        while not list(leases_folder().iterdir()) and time.monotonic() < end:
            time.sleep(0.02)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        end = time.monotonic() + 240
        runners = home / "environments" / "runners"
        while (
            list(runners.iterdir()) or list(leases_folder().iterdir())
        ) and time.monotonic() < end:
            time.sleep(0.1)
        assert list(runners.iterdir()) == []
        assert list(leases_folder().iterdir()) == []
        assert list(public_folder.iterdir()) == [leases_folder()]
