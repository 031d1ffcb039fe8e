"""`--check` and OPENCLAW_CHECK: what a command would start, and what speaks against it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from openclaw_rl.cli.main import cli
from openclaw_rl.common.sockets import free_port
from openclaw_rl.errors import ConfigError, OpenClawError
from openclaw_rl.settings.load import load
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

STARTS = "nothing speaks against a start of "


def check(home: Path, *words: str, **environ: str) -> Result:
    arguments = [*words, "--home", str(home), "--port", str(free_port())]
    return CliRunner().invoke(cli, arguments, env={"OPENCLAW_CHECK": "true", **environ})


def test_a_check_prints_the_settings_and_starts_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = CliRunner().invoke(
        cli, ["up", "--check", "--lr", "1e-6", "--home", str(home), "--port", str(free_port())]
    )
    assert done.exit_code == 0, done.output
    assert f"{STARTS}engine, gateway, collect, judge, train, page" in done.stderr
    assert not home.exists()
    file = tmp_path / "settings.yaml"
    file.write_text(done.stdout)
    assert yaml.safe_load(done.stdout)["train.optimizer.learning_rate"] == 1e-6
    settings = load(file=file, environ={})
    assert (settings.home, settings.run.check_only) == (str(home), True)


def test_a_secret_is_not_printed(tmp_path: Path) -> None:
    done = check(tmp_path, "serve", OPENCLAW_API_KEY="of-mine")
    assert "# serve.api_key: (set)  # environment: OPENCLAW_API_KEY" in done.stdout
    assert "of-mine" not in done.output


@pytest.mark.parametrize(
    ("words", "workers"),
    [
        (("collect",), "collect."),
        (("evaluate",), "engine, gateway."),
        (("chat",), "engine, gateway, collect, judge, train, page."),
        (("test-rollout", "--output-dir", "new-folder"), "engine, gateway, collect, data."),
    ],
)
def test_each_command_that_starts_something_can_check(
    words: tuple[str, ...], workers: str, tmp_path: Path
) -> None:
    done = check(tmp_path / "home", *words)
    assert done.exit_code == 0, done.output
    assert STARTS + workers in done.stderr
    assert not (tmp_path / "home").exists()


def test_environment_training_counts_the_tasks(tmp_path: Path) -> None:
    tools = Path(__file__).parents[2] / "recipes" / "toolcall-rl" / "tools_config.json"
    done = check(tmp_path / "home", "env", "train", f"tools:{tools}")
    assert done.exit_code == 0, done.output
    assert "10 tasks of tools:" in done.stderr
    assert "train.method: groups" in done.stdout


def test_a_port_that_is_taken_speaks_against_a_start(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(cli, ["up", "--check", "--home", str(tmp_path), "--port", port])
    assert isinstance(done.exception, OpenClawError)
    assert f"127.0.0.1:{port} cannot be bound" in str(done.exception)


def test_a_checkpoint_that_is_missing_speaks_against_a_start(tmp_path: Path) -> None:
    done = check(tmp_path / "home", "up", RESUME_CKPT=str(tmp_path / "checkpoint-5"))
    assert "no such checkpoint" in str(done.exception)


def test_a_command_that_needs_a_running_system_refuses_to_check_only(tmp_path: Path) -> None:
    config = scratch_config(tmp_path, {"run.check_only": True})
    with (
        pytest.raises(ConfigError, match="needs a system that runs: unset it"),
        SubprocessSystem(config),
    ):
        pass
