"""`openclaw-rl env run tools` at a whole system: episodes with the starter policy, and a kill in the middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from openclaw_rl.environments.leftovers import find_processes
from openclaw_rl.sandbox.box_lease import leases_folder
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

CONFIG = Path(__file__).parents[2] / "examples" / "tools" / "notebook.json"


def start_run(home: Path, folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "openclaw_rl",
        "env",
        "run",
        f"tools:{CONFIG}",
        "--home",
        str(home),
    ]
    command += [
        "--agent",
        "text",
        "--held-out",
        "0.1",
        "--split",
        "held_out",
        "--group",
        "2",
        "--parallel",
        "4",
    ]
    environment = os.environ | {"TMPDIR": str(folder)}
    return subprocess.Popen(
        [*command, "--run", "tools", "--json", *options],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_run_that_is_killed_leaves_nothing_and_is_continued(
    public_folder: Path, tmp_path: Path
) -> None:
    with SubprocessSystem(scratch_config(tmp_path / "home"), command="serve") as system:
        home = system.config.home_dir
        killed = start_run(home, public_folder)
        end = time.monotonic() + 120
        while not any(leases_folder().iterdir()) and time.monotonic() < end:
            time.sleep(0.05)
        killed.kill()
        killed.communicate()
        while any(public_folder.glob("openclaw-tools-*")) and time.monotonic() < end:
            time.sleep(0.1)
        assert not list(public_folder.glob("openclaw-tools-*")), (
            "the reaper removes the folders of the episodes"
        )
        assert find_processes(str(leases_folder())) == []
        out, _ = start_run(home, public_folder).communicate(timeout=240)
    found: dict[str, Any] = json.loads(out)
    assert found["done"] > 0
    assert set(found["void"]["reasons"]) <= {"the runner was killed"}
    assert 0 < found["mean_reward"] < 1
