"""Before anything goes to Tinker or Fireworks the owner sees what, and agrees once for each address and purpose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import click
import pytest
from tests.engines.remote.fireworks_server import FireworksDouble

from openclaw_rl.cli import main as command_line
from openclaw_rl.common import logging_metrics
from openclaw_rl.common.sockets import free_port
from openclaw_rl.environments import commands
from openclaw_rl.environments.types import TaskFitness
from openclaw_rl.errors import ConfigError, EngineError
from openclaw_rl.settings.load import CONFIG_VARIABLE, Config, from_flat
from openclaw_rl.store import events
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor import preflight, service_consent, subprocess_system, supervisor
from openclaw_rl.supervisor.home_folder import prepare_home
from openclaw_rl.supervisor.service_consent import require_consent

SERVE = ("engine", "gateway")


def settings(home: Path, **more: object) -> Config:
    config = from_flat(
        {"home": str(home), "engine.backend": "tinker", "tinker.url": "http://one:1"} | more
    )
    prepare_home(config)
    return config


def test_without_a_yes_nothing_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = settings(tmp_path)
    for _ in range(2):
        with pytest.raises(ConfigError, match="before you agree"):
            require_consent(config, SERVE, yes=False)
    said = capsys.readouterr().err
    assert "(http://one:1) gets" in said
    assert "every prompt (system text, conversation, tools, lessons) and of every reply" in said
    assert "to train" not in said


@pytest.mark.parametrize(
    ("backend", "stays"), [("tinker", "The store stays here"), ("fireworks", "Scores, training")]
)
def test_the_consent_text_names_reactions_and_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: str, stays: str
) -> None:
    """The next message is the reaction, and it is sent; in training the score decides the numbers that are sent."""
    more = {"engine.backend": backend, "tinker.url": None, "engine.max_context": 64}
    if backend == "tinker":
        more |= {"train.trainer": "tinker", "gate.kind": "numbers"}
    else:
        values = {"base_model": "accounts/fireworks/models/m", "api_key": "fw", "account": "me"}
        more |= {f"fireworks.{name}": value for name, value in values.items()}
    config = from_flat({"home": str(tmp_path)} | more)
    prepare_home(config)
    require_consent(config, ("engine", "train"), yes=True)
    said = capsys.readouterr().err
    assert (
        "A reaction that is the next message of its conversation is part of the next prompt."
        in said
    )
    assert "reactions as text" not in said
    assert stays in said
    assert ("a number for each token, which its score decides" in said) == (backend == "tinker")


def test_training_there_while_an_engine_here_serves_sends_no_prompts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trains = {"engine.backend": "embedded", "train.trainer": "tinker", "gate.kind": "numbers"}
    require_consent(settings(tmp_path, **trains), ("engine", "train"), yes=True)
    said = capsys.readouterr().err
    assert "to answer" not in said
    assert "to train: the tokens of the turns that it trains on" in said
    assert "copies of the trained weights stay at the service" in said


def test_a_yes_is_recorded_and_holds_for_this_address(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = settings(tmp_path)
    require_consent(config, SERVE, yes=True)
    assert "gets:" in capsys.readouterr().err, "shown also with --yes"
    require_consent(config, SERVE, yes=False)
    assert capsys.readouterr().err == ""
    with Store.open(config.store_path) as store, store.read() as conn:
        (event,) = events.read_after(conn, 0, 10, ["consent.tinker"])
    assert (event.ref, event.data) == ("http://one:1", {"purposes": ["serve"]})
    with pytest.raises(ConfigError, match="before you agree"):
        require_consent(settings(tmp_path, **{"tinker.url": "http://two:2"}), SERVE, yes=False)


def test_in_a_terminal_the_command_asks_for_consent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([click.Abort(), None])

    def confirm(text: str, **options: object) -> None:
        if (answer := next(answers)) is not None:
            raise answer

    monkeypatch.setattr(service_consent.sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(service_consent.click, "confirm", confirm)
    with pytest.raises(click.Abort):
        require_consent(settings(tmp_path), SERVE, yes=False)
    require_consent(settings(tmp_path), SERVE, yes=False)
    require_consent(settings(tmp_path), SERVE, yes=False)


def test_a_closed_standard_input_is_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a service that another program starts (`<&-`)."""
    monkeypatch.setattr(service_consent.sys, "stdin", None)
    with pytest.raises(ConfigError, match="before you agree"):
        require_consent(settings(tmp_path), SERVE, yes=False)


def test_other_engines_ask_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_consent(
        settings(tmp_path, **{"engine.backend": "embedded", "tinker.url": None}), SERVE, yes=False
    )
    require_consent(settings(tmp_path), ("collect", "judge"), yes=False)
    assert capsys.readouterr().err == ""


class StartedSupervisor:
    """Records the workers of each start in place of running them."""

    starts: ClassVar[list[tuple[str, ...]]] = []

    def __init__(self, config: Config, workers: Sequence[str], **_options: object) -> None:
        self.starts.append(tuple(workers))

    async def run(self, stop: object) -> None:
        pass


@pytest.mark.parametrize("command", ["serve", "up", "train"])
def test_a_command_that_runs_workers_asks_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(StartedSupervisor, "starts", started)
    monkeypatch.setattr(preflight, "check_before_start", lambda config, workers: None)
    monkeypatch.setattr(supervisor, "setup_logging", lambda *args: None)
    monkeypatch.setattr(supervisor, "Supervisor", StartedSupervisor)
    sets = ["train.trainer=tinker", "gate.kind=numbers", f"serve.port={free_port()}"]
    words = [command, "--home", str(tmp_path), "--backend", "tinker"]
    words += [word for each in sets for word in ("--set", each)]
    with pytest.raises(ConfigError, match="before you agree"):
        command_line.cli([*words], standalone_mode=False)
    assert started == []
    for more in (["--yes"], []):
        command_line.cli([*words, *more], standalone_mode=False)
    assert len(started) == 2


def test_chat_asks_before_it_starts_a_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system that it starts has no terminal to ask in."""
    asked: list[str] = []

    class StartedSystem(Exception):
        pass

    def start(command: list[str], **_options: object) -> None:
        raise StartedSystem

    monkeypatch.setattr(subprocess_system.subprocess, "Popen", start)
    words = ["chat", "--home", str(tmp_path), "--backend", "tinker"]
    with pytest.raises(ConfigError, match="before you agree"):
        command_line.cli([*words], standalone_mode=False)
    monkeypatch.setattr(service_consent.sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(
        service_consent.click, "confirm", lambda text, **options: asked.append(text)
    )
    for _ in range(2):
        with pytest.raises(StartedSystem):
            command_line.cli([*words], standalone_mode=False)
    assert asked == ["Continue?"], "once"


@pytest.mark.parametrize(
    ("words", "says_yes"),
    [
        ("chat", False),
        ("evaluate", True),  # on a home of its own
        ("evaluate --policy base", False),
        ("evaluate lm-eval --tasks t --policy base --program true", False),
        ("test-rollout --output-dir OUT", True),
        ("env train TASKS", False),
    ],
)
def test_commands_that_start_a_system_for_a_while_ask_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, says_yes: bool
) -> None:
    """Their systems have no terminal to ask in: they find the yes in the store of the home, or are told."""
    started: list[tuple[list[str], dict[str, str]]] = []

    class StartedSystem(Exception):
        pass

    def start(command: list[str], *, env: dict[str, str], **options: object) -> None:
        started.append((command, env))
        raise StartedSystem

    monkeypatch.setattr(
        logging_metrics, "setup_logging", lambda *args: None
    )  # it would hold for all tests
    fit = TaskFitness(task="t", digest="d", fit=True, reason="")
    monkeypatch.setattr(commands, "check_environment", lambda *args: [fit])
    monkeypatch.setattr(commands, "find_source", lambda request: None)
    given = words.replace("OUT", str(tmp_path / "out")).replace("TASKS", str(tmp_path)).split()
    home, out = tmp_path / "home", ["--backend", "tinker", "--set", "tinker.url=http://one:1"]
    given += ["--home", str(home), *out]
    with pytest.raises(ConfigError, match="before you agree"):
        command_line.cli(given, standalone_mode=False)
    monkeypatch.setattr(subprocess_system.subprocess, "Popen", start)
    for more in (["--yes"], []):
        with pytest.raises(StartedSystem):
            command_line.cli([*given, *more], standalone_mode=False)
    for command, env in started:
        assert ("--yes" in command) == says_yes
        assert json.loads(env[CONFIG_VARIABLE])["tinker"]["url"] == "http://one:1"
    assert len(started) == 2


def test_fireworks_is_asked_nothing_before_the_yes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even whether it fits; after the yes it is, and here its letters are no tokens of the starter."""
    with FireworksDouble() as service:
        values = {"url": service.url, "api_key": "fw", "account": "me", "deployment": "mine"}
        values["base_model"] = "accounts/fireworks/models/letters"
        sets = [
            word
            for name, value in values.items()
            for word in ("--set", f"fireworks.{name}={value}")
        ]
        words = [
            "serve",
            "--home",
            str(tmp_path),
            "--backend",
            "fireworks",
            "--set",
            "engine.max_context=64",
            *sets,
        ]
        with pytest.raises(ConfigError, match="nothing is sent to Fireworks before you agree"):
            command_line.cli(words, standalone_mode=False)
        assert (
            "the tokens of every prompt (system text, conversation, tools, lessons)"
            in capsys.readouterr().err
        )
        assert service.requests == []
        with pytest.raises(EngineError, match="do not decode to its text with the tokenizer"):
            command_line.cli([*words, "--yes"], standalone_mode=False)
        assert service.requests
