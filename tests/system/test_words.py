"""Bad input at the command line: each gets a message that says what, what was expected, and what to do."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies

pytestmark = pytest.mark.system

REWARD_PLUGIN = str(Path(__file__).parents[2] / "examples" / "plugins" / "custom_rm.py")


def run(
    *arguments: str, timeout: float = 300, typed: str | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "openclaw_rl", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, input=typed
    )


def test_help_answers_without_torch() -> None:
    """`benchmarks/cli_start.py` measures how long it takes."""
    assert run("--help").returncode == 0
    code = "import sys; import openclaw_rl.cli.main; assert not {'torch', 'transformers', 'aiohttp'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("up", "--set", "serve.prot=1"),
            ("unknown setting 'serve.prot'", "Did you mean 'serve.port'"),
        ),
        (("up", "--set", "nonsense"), ("expected KEY=VALUE",)),
        (("up", "--model-path", "/no/such/model"), ("/no/such/model", "--model-path")),
        (("up", "--host", "0.0.0.0"), ("no key is set", "OPENCLAW_API_KEY")),
        (("up", "--config", "/no/such/file.yaml"), ("no such settings file",)),
        (
            ("up", "--save-dir", "~nobody-there/x"),
            ("train.checkpoint.save_dir ~nobody-there/x: expected the home folder",),
        ),
        (
            ("judge", "--set", "judge.rules_path=/no/rules"),
            ("/no/rules: the judge's rules cannot be read",),
        ),
        (
            ("judge", "--rm-checkpoint", "/no/prm"),
            ("judge.reward_path '/no/prm' is neither a folder", "--rm-checkpoint"),
        ),
        (
            ("judge", "--judge-model-path", "/no/j"),
            ("judge.path '/no/j' is neither a folder", "--judge-model-path"),
        ),
        (
            ("judge", "--custom-rm-path", REWARD_PLUGIN, "--rm-checkpoint", "/no/w"),
            ("judge.reward_path /no/w: no such file or folder", "--rm-checkpoint"),
        ),
        (
            ("up", "--model-path", "x" * 300),
            ("File name too long", "Expected a path that this user can use"),
        ),
        (
            ("data", "import", "/dev/zero"),
            ("/dev/zero: expected a file or a folder, got a pipe or a device",),
        ),
        pytest.param(
            ("train", "--set", "track.to=[wandb]"),
            ("track.to names wandb, which is not installed here",),
            marks=pytest.mark.skipif(
                importlib.util.find_spec("wandb") is not None, reason="wandb is installed"
            ),
        ),
        (("status",), ("no store", "openclaw-rl up")),
    ],
)
def test_wrong_settings(tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    done = run(*arguments, "--home", str(tmp_path / "home"))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "crashed" not in done.stderr, "it was not said before anything started"
    for word in words:
        assert word in done.stderr


SHUT = "/proc" if os.geteuid() == 0 else "shut"  # nobody writes there, not even root


@pytest.mark.parametrize(
    ("command", "setting", "folder"),
    [
        ("train", "train.checkpoint.save_dir", "file"),
        ("up", "train.checkpoint.save_dir", "file/below"),
        ("up", "train.checkpoint.save_dir", SHUT),
        ("up", "data.export_dir", SHUT),
        ("up", "data.watch_dir", "file/below"),
        ("up", "home", SHUT),
        ("up", "home", "file"),
    ],
)
def test_a_folder_that_cannot_be_used_is_said_before_anything_starts(
    tmp_path: Path, command: str, setting: str, folder: str
) -> None:
    (tmp_path / "file").write_text("words")
    (tmp_path / "shut").mkdir(mode=0o500)
    wrong = str(tmp_path / folder)
    given = {"home": str(tmp_path / "home"), setting: wrong}
    done = run(
        command, *(word for key, value in given.items() for word in ("--set", f"{key}={value}"))
    )
    assert done.returncode == 1
    assert "crashed" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("openclaw-rl: ")]
    assert f"{setting} {wrong}: " in line
    assert "Expected a folder that this user can read" in line
    assert f"Choose another {setting}" in line


@pytest.mark.parametrize(
    "command", ["status", "key", "inspect sessions", "rollback 0", "doctor --troubles", "up"]
)
def test_a_refused_variable_stops_only_what_starts_a_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("MAX_GUI_STEPS", "20")
    monkeypatch.setenv("OPENCLAW_API_KEY", "sk-mine")
    with Store.open(tmp_path / "store.db") as store, store.write() as conn:
        policies.ensure_root(conn, base="b", identity="i", at=1.0)
    done = run(*command.split(), "--home", str(tmp_path))
    assert ("MAX_GUI_STEPS is refused" in done.stderr) == (command == "up")
    assert (done.returncode == 0) == (command not in ("up", "rollback 0")), (
        "there is nothing to roll back"
    )


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("up", "--home", str(tmp_path / "home"), "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "cannot be bound" in done.stderr
    assert "--port" in done.stderr


def test_a_corrupt_store(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "store.db").write_bytes(b"this is no database, but somebody's shopping list\n" * 200)
    done = run("status", "--home", str(home))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "store.db" in done.stderr
    assert (home / "store.db").read_bytes().startswith(b"this is no database"), (
        "it must not be overwritten"
    )
