"""The names under which descriptions of the program start it."""

from __future__ import annotations

import contextlib
import os
import runpy
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
    ("script", "command"),
    [
        (ROOT / "src" / "openclaw" / "server.py", "serve"),
        (ROOT / "src" / "openclaw_combine" / "test_rollout.py", "test-rollout"),
        (COMBINE / "serve_model.py", "serve"),
        (COMBINE / "collect_rollouts.py", "collect"),
        (COMBINE / "train_async.py", "train"),
        (ROOT / "slime" / "train.py", "train"),
        (ROOT / "slime" / "train_grpo.py", "train"),
    ],
)
def test_a_script_is_the_command_and_takes_its_flags(
    script: Path,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run_here(*words: str) -> tuple[str, str]:
        """Run the script as the main module of this process; return its stdout and stderr."""
        monkeypatch.setattr(sys, "argv", [str(script), *words])
        with contextlib.suppress(SystemExit):
            runpy.run_path(str(script), run_name="__main__")
        return capsys.readouterr()

    out, err = run_here("--help")
    assert out.splitlines()[0].startswith(f"Usage: openclaw-rl {command} "), out + err
    assert err == ""
    refused = run_here("--home", str(tmp_path / "home"), "--lrr", "1")[1]
    assert "lr" in refused
    assert "Traceback" not in refused


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("openclaw_rl", ""),
        ("openclaw.server", "serve "),
        ("openclaw_combine.test_rollout", "test-rollout "),
    ],
)
def test_the_package_is_the_command(module: str, command: str, tmp_path: Path) -> None:
    done = run(["-m", module, "--help"], tmp_path)
    assert done.stdout.startswith(f"Usage: openclaw-rl {command}"), done
    assert (done.returncode, done.stderr) == (0, "")


def test_under_torchrun_the_command_is_named(tmp_path: Path) -> None:
    script = str(ROOT / "slime" / "train_grpo.py")
    world = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}
    first, second = (
        run([script, "--lr", "1e-6"], tmp_path, RANK=rank, **world) for rank in ("0", "1")
    )
    assert "train.ranks=4 --set train.launch.by=torchrun --set train.launch.nodes=2" in first.stderr
    assert (first.returncode, second.returncode, second.stderr) == (1, 1, ""), "logged once"


def test_modules_that_scripts_import_exist() -> None:
    assert utils.inspect_sessions is openclaw_rl.inspect_sessions
