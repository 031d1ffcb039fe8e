"""The options of the command line: given twice, out of range, and the same wherever settings are read."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from benchmarks import build_starter
from click.testing import CliRunner, Result

from openclaw_rl.cli.main import cli
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.cli_options import home_options, settings_options


def commands(group: click.Group, above: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command
            for below, one in getattr(command, "subcommands", {}).items():
                yield f"{above}{name} {below}", one


EVERY = [*commands(cli), ("starter", build_starter.main)]
SHARED, OF_A_HOME = (
    {parameter.name for parameter in click.command(options(lambda: None)).params}
    for options in (settings_options, home_options)
)
INSPECT = ("sessions", "session", "turn", "policy", "episode", "group")
POLICIES = (
    "export",
    "list",
    "show",
    "diff",
    "promote",
    "rollback",
    "pin",
    "unpin",
    "freeze",
    "unfreeze",
)
READERS = {
    "key",
    "status",
    "rollback",
    "undo",
    "learned",
    "data export",
    "data stream",
    *(f"inspect {what}" for what in INSPECT),
}
READERS |= {f"policies {what}" for what in POLICIES}
READERS |= {f"lessons {what}" for what in ("list", "edit", "pin", "unpin", "share", "forget")}
READERS |= {
    "open",
    "data stream",
    "env build",
    "env check",
    "env run",
    "fireworks export",
    "fireworks deploy",
}
"""Commands that only read or change a home."""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


@pytest.mark.parametrize(("name", "command"), EVERY, ids=[name for name, _ in EVERY])
def test_every_command_reads_its_options_alike(name: str, command: click.Command) -> None:
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    numbers = [
        p
        for p in command.params
        if isinstance(p.type, click.types.IntParamType | click.types.FloatParamType)
    ]
    unbound = {p.name for p in numbers if not isinstance(p.type, click.IntRange | click.FloatRange)}
    assert unbound <= {"seed", "with_parent"}
    names = {p.name for p in command.params if not getattr(p, "hidden", False)}
    if "file" in {p.name for p in options}:
        assert names & SHARED == (OF_A_HOME if name in READERS else SHARED)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("doctor", "--engine", "vllm", "--backend", "sglang"),
            "--engine is vllm and --backend sglang",
        ),
        (("up", "--port", "0"), "'--port': 0 is not in the range"),
        (("up", "--port", "70000"), "'--port': 70000 is not in the range"),
        (("serve", "--port", "-1"), "'--port': -1 is not in the range"),
        (("doctor", "--wait", "-1"), "'--wait': -1.0 is not in the range"),
        (("doctor", "--wait", "nan"), "'--wait': nan is no number of seconds"),
        (("test-rollout", "--output-dir", "x", "--wait", "0"), "'--wait': 0.0 is not in the range"),
        (("inspect", "sessions", "--limit", "-5"), "'--limit': -5 is not in the range"),
        (("inspect", "policy", "--", "-1"), "'VERSION': -1 is not in the range"),
    ],
)
def test_arguments_without_a_possible_meaning_are_refused(
    arguments: tuple[str, ...], words: str
) -> None:
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert words in done.output


@pytest.mark.parametrize(
    ("arguments", "both"),
    [
        (("--lr", "1e-6", "--lr", "2e-6"), ("--lr (1e-6)", "--lr (2e-6)")),
        (("--gpus", "0,1", "--train-gpus", "2"), ("--gpus (0,1)", "--train-gpus (2)")),
        (("--set", "train.seed=1", "--set", "train.seed=2"), ("train.seed (1)", "train.seed (2)")),
        (
            ("--method", "opd", "--set", "train.method=binary"),
            ("train.method (opd)", "train.method (binary)"),
        ),
        (("--model-path", "a", "--set", "model.path=b"), ("model.path (a)", "model.path (b)")),
    ],
)
def test_two_values_of_one_setting_are_both_named(
    arguments: tuple[str, ...], both: tuple[str, str]
) -> None:
    error = invoke("config", "show", *arguments).exception
    assert isinstance(error, ConfigError)
    assert f"{both[0]} and {both[1]} both set " in str(error)


def test_a_key_is_not_shown() -> None:
    error = invoke(
        "config", "show", "--set", "serve.api_key=sk-one", "--set", "serve.api_key=sk-two"
    ).exception
    assert isinstance(error, ConfigError)
    assert "both set serve.api_key and disagree" in str(error)
    assert "sk-" not in str(error)


def test_of_an_option_given_twice_the_last_counts() -> None:
    done = invoke(
        *(
            "config",
            "show",
            "--port",
            "8002",
            "--port",
            "8001",
            "--set",
            "serve.port=8001",
            "--lr",
            "1e-6",
        )
    )
    assert done.exit_code == 0
    assert "  port: 8001  # flags: serve.port" in done.output


def test_help_shows_the_options_of_up() -> None:
    given = (
        "--backend",
        "vllm",
        "--engine-url",
        "http://gpu:1",
        "--engine-python",
        "/v/python",
        "--log-level",
        "debug",
    )
    done = invoke("config", "show", *given)
    assert done.exit_code == 0, done.output
    for line in ("url: http://gpu:1", "python: /v/python", "log_level: debug"):
        assert f"  {line}  # flags: " in done.output
