"""`openclaw-rl new-method`: what it makes runs at once, live and from files."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.external.recipes.running import environment, free_port, talks

from openclaw_rl.cli.main import cli
from openclaw_rl.cli.recipes import create_method
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.load import from_flat, load
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import is_ready


def test_the_command_makes_a_folder_with_everything_in_it(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["new-method", "my-method", "--into", str(tmp_path)])
    assert done.exit_code == 0, done.output
    folder = tmp_path / "my-method"
    assert {f.name for f in folder.iterdir()} == {
        "README.md",
        "run_my_method.sh",
        "my_method.yaml",
        "custom_loss.py",
        "custom_rollout.py",
    }
    assert os.access(folder / "run_my_method.sh", os.X_OK)
    assert not any(
        word in file.read_text() for file in folder.iterdir() for word in ("SNAKE", "NAME ")
    )
    assert load(file=folder / "my_method.yaml", environ={}).train.method == "combine"


@pytest.mark.parametrize("name", ["", "My", "a/b", "..", "a b", "-a", "a-", "1a", "a" * 61, "a\n"])
def test_names_that_are_no_plain_word_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lower-case letters"):
        create_method(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("my own words")
    with pytest.raises(ConfigError, match="already exists"):
        create_method("mine", tmp_path)
    assert [f.read_text() for f in (tmp_path / "mine").iterdir()] == ["my own words"]


def test_it_trains_from_files_with_its_own_loss(tmp_path: Path) -> None:
    create_method("mine", tmp_path)
    talks(tmp_path / "talks.jsonl")
    variables = {"DATA_PATH": "talks.jsonl", "OPENCLAW_HOME": "home", "MODEL_PATH": "starter"}
    command = ["bash", "mine/run_mine.sh", "--set", "train.max_steps=1"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(tmp_path, **variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    store = Store.open(tmp_path / "home" / "store.db", create=False)
    with store.read() as conn:
        head = policies.head(conn)
    store.close()
    assert head.version == 1
    assert "loss/custom" in head.metrics
    assert head.metrics["plugin/wrong_signs"] == 0


def test_it_serves_and_its_rollouts_run(tmp_path: Path) -> None:
    create_method("mine", tmp_path)
    port = free_port()
    own = environment(tmp_path, OPENCLAW_HOME="home", MODEL_PATH="starter", OPENCLAW_PORT=str(port))
    process = subprocess.Popen(
        ["bash", "mine/run_mine.sh", "--with-parent"],
        cwd=tmp_path,
        env=own,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 120
        while not is_ready(f"http://127.0.0.1:{port}") and time.monotonic() < end:
            time.sleep(0.2)
        config = from_flat({"home": str(tmp_path / "home")})
        words = [
            "--rollout-function-path",
            "mine/custom_rollout.py",
            "--prompt",
            "What is the capital of France?",
        ]
        done = subprocess.run(
            ["openclaw-rl", "rollout", *words],
            cwd=tmp_path,
            env=own,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (told,) = (json.loads(f.read_text()) for f in (config.home_dir / "rollouts").iterdir())
        assert told["result"]["score"] in (1, -1)
    finally:
        process.terminate()
        process.wait(60)
