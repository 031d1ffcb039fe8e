"""Which options a source of tasks takes, and what a run says before it begins."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from openclaw_rl.cli.main import cli
from openclaw_rl.common import logging_metrics
from openclaw_rl.common.gateway_address import GatewayAddress, publish_address
from openclaw_rl.environments.registry import SOURCES, SourceRequest, find_source
from openclaw_rl.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"argument": "tasks/"}, "`:tasks/`"),
        ({"python": "envs/bin/python"}, "--python"),
        ({"agent": "terminus-2"}, "--agent"),
    ],
)
def test_an_option_that_a_source_does_not_use_is_refused(given: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"does not use {named}")):
        find_source(SourceRequest(source="command", search_path="/usr/bin", **given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"agent": "claude-code"},
            "expected one of tools, text, plain, program, terminus-2, oracle, nop",
        ),
        ({"agent": "program"}, "no program: give it after `--`"),
        ({"agent": "text", "command": ("mini",)}, "need --agent program"),
        ({"agent": "program", "command": ("/opt/mini",)}, "add --show /opt"),
        (
            {"agent": "program", "command": ("mini",), "shown": ("nowhere",)},
            "--show nowhere: no such file or folder",
        ),
        ({"agent": "text", "python": sys.executable}, "needs no --python"),
        ({"agent": "terminus-2", "python": "no-such-python"}, "no such program"),
    ],
)
def test_an_agent_of_harbor_needs_its_python_and_no_other_does(
    given: dict[str, str], words: str
) -> None:
    request = SourceRequest(source="harbor", argument="tasks", search_path="/usr/bin", **given)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=re.escape(words)):
        find_source(request).make_runner(request)


def test_an_unknown_source_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=", ".join(SOURCES)):
        find_source(SourceRequest(source="gym", search_path="/usr/bin"))


@pytest.mark.parametrize(("method", "noted"), [("combine", True), ("groups", False)])
def test_a_run_whose_outcomes_train_nothing_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, noted: bool
) -> None:
    monkeypatch.setattr(
        logging_metrics, "setup_logging", lambda *_: None
    )  # it would last beyond this test
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"question": "2 + 2?"}\n')
    address = GatewayAddress(
        url="http://127.0.0.1:9",
        model="m",
        model_path="starter",
        key="file",
        pid=os.getpid(),
        method=method,
    )
    command = [
        "env",
        "run",
        "command",
        "--home",
        str(tmp_path),
        "--tasks",
        str(tasks),
        "--",
        "true",
    ]
    with publish_address(tmp_path, address):
        done = CliRunner().invoke(cli, command)
    assert "were not checked" in str(done.exception), (
        "it goes on, to the next thing that is missing"
    )
    assert ("trains with combine, which learns nothing from outcomes" in done.output) is noted


@pytest.mark.parametrize(
    "words", [("--method", "binary"), ("--set", "train.method=binary"), ("--config", "FILE")]
)
def test_training_on_tasks_refuses_another_method(tmp_path: Path, words: tuple[str, str]) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("train:\n  method: binary\n")
    given = [word.replace("FILE", str(file)) for word in words]
    done = CliRunner().invoke(
        cli, ["env", "train", "command", "--home", str(tmp_path / "home"), *given]
    )
    assert "train.method is binary" in str(done.exception)
    assert "Expected groups" in str(done.exception)
    assert not (tmp_path / "home").exists(), "nothing was started"


def test_a_source_that_cannot_be_read_starts_no_system(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = CliRunner().invoke(
        cli, ["env", "train", f"harbor:{tmp_path / 'none'}", "--home", str(home)]
    )
    assert "none" in str(done.exception)
    assert not (home / "logs" / "up.log").exists()


@pytest.mark.parametrize("words", [(), ("--method", "groups")])
def test_settings_of_groups_have_an_effect_on_training_on_tasks(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    address = GatewayAddress(
        url="http://127.0.0.1:9", model="m", model_path="starter", key="file", pid=os.getpid()
    )
    command = [
        "env",
        "train",
        "command",
        "--home",
        str(tmp_path),
        "--set",
        "train.loss.w_outcome=2",
        *words,
    ]
    with publish_address(tmp_path, address):
        done = CliRunner().invoke(cli, command)
    assert "a system runs on" in str(done.exception), "it goes on, to the next thing that is wrong"
    assert "no effect" not in done.output
