"""The names under which descriptions of the program start it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import openclaw_rl
from openclaw_combine import utils

ROOT = Path(__file__).parents[2]
COMBINE = ROOT / "recipes" / "openclaw-combine"


def run(words: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("name", "command"),
    [
        (["-m", "openclaw.server"], "serve"),
        (["-m", "openclaw_combine.test_rollout"], "test-rollout"),
        ([str(COMBINE / "serve_model.py")], "serve"),
        ([str(COMBINE / "collect_rollouts.py")], "collect"),
        ([str(COMBINE / "train_async.py")], "train"),
        ([str(ROOT / "slime" / "train.py")], "train"),
        ([str(ROOT / "slime" / "train_grpo.py")], "train"),
    ],
)
def test_it_is_the_command_and_takes_its_words(name: list[str], command: str, tmp_path: Path) -> None:
    told = run([*name, "--help"], tmp_path)
    assert told.stdout.splitlines()[0].startswith(f"Usage: openclaw-rl {command} "), told
    assert (told.returncode, told.stderr) == (0, "")
    wrong = run([*name, "--home", str(tmp_path / "home"), "--lrr", "1"], tmp_path)
    assert wrong.returncode != 0
    assert "--lr" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_the_package_is_the_command(tmp_path: Path) -> None:
    told = run(["-m", "openclaw_rl", "--help"], tmp_path)
    assert told.stdout.startswith("Usage: openclaw-rl "), told
    assert (told.returncode, told.stderr) == (0, "")


def test_under_torchrun_the_command_is_named(tmp_path: Path) -> None:
    script = str(ROOT / "slime" / "train_grpo.py")
    world = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}
    first, second = (run([script, "--lr", "1e-6"], tmp_path, RANK=rank, **world) for rank in ("0", "1"))
    assert "train.ranks=4 --set train.launch.by=torchrun --set train.launch.nodes=2" in first.stderr
    assert (first.returncode, second.returncode, second.stderr) == (1, 1, ""), "told once"


def test_what_scripts_import_is_there() -> None:
    assert utils.inspect_sessions is openclaw_rl.inspect_sessions
