"""The shipped desktop under Xvfb: its task is fit, another day is no solution, and nothing of a desktop is left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.test_environments import marked_processes

DESKTOP = Path(__file__).parents[4] / "tasks" / "desktop"


@pytest.fixture(autouse=True)
def _needs_a_desktop(mcp_python: str) -> None:
    missing = [name for name in ("Xvfb", "xdotool", "scrot") if shutil.which(name) is None]
    if subprocess.run(
        [mcp_python, "-c", "import tkinter"], capture_output=True, check=False
    ).returncode:
        missing.append("tkinter")
    if missing:
        pytest.skip(
            f"not installed: {', '.join(missing)} (on Debian: apt install xvfb xdotool scrot python3-tk)"
        )


@pytest.fixture
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="boxes-", dir="/tmp"))  # boxes of root pass through it
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


def check(folder: Path, mcp_python: str, scratch: Path, home: Path) -> str:
    """Run `env check` on a desktop; return what it says of the task."""
    path = f"{Path(mcp_python).absolute().parent}:{os.environ['PATH']}"
    command = [
        sys.executable,
        "-m",
        "openclaw_rl",
        "env",
        "check",
        f"tools:{folder / 'tools.json'}",
    ]
    done = subprocess.run(
        [*command, "--home", str(home), "--python", mcp_python],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        env=os.environ | {"TMPDIR": str(scratch), "PATH": path},
    )
    assert marked_processes(scratch) == []
    return done.stdout.splitlines()[0] if done.stdout else done.stderr


def test_the_desktop_is_fit(mcp_python: str, scratch: Path, tmp_path: Path) -> None:
    assert (
        check(DESKTOP, mcp_python, scratch, tmp_path / "home") == "appointment-with-reminder: fit"
    )


def test_another_day_is_no_solution(mcp_python: str, scratch: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(DESKTOP, tmp_path / "desktop")
    task = json.loads((folder / "tasks.jsonl").read_text())
    day = task["calls"][2]
    assert day["arguments"] == {"x": 220, "y": 205}, "Thursday"
    day["arguments"]["y"] = 245
    (folder / "tasks.jsonl").write_text(json.dumps(task) + "\n")
    assert "the recorded solution got 0, not 1" in check(
        folder, mcp_python, scratch, tmp_path / "home"
    )
