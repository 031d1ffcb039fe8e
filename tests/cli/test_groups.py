"""Groups of commands: sections of the help, and groups that list if no command is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from openclaw_rl.cli.main import cli
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.home_folder import prepare_home


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home in which nothing has happened yet."""
    config = from_flat({"home": str(tmp_path / "home")})
    prepare_home(config)
    Store.open(config.store_path).close()
    return config.home_dir


def test_help_begins_with_what_a_newcomer_needs() -> None:
    output = CliRunner().invoke(cli, ["--help"]).output
    titles = ["Start here:", "One stage alone:", "Programs and services:"]
    places = [output.index(title) for title in titles]
    assert places == sorted(places)
    first = output[places[0] : places[1]]
    names = ("up", "chat", "status", "learned", "lessons", "undo", "doctor", "connect", "env")
    assert all(f"\n  {name} " in first for name in names)
    listed = [line.split()[0] for line in output.splitlines() if line.startswith("  ")]
    shown = [name for name, command in cli.commands.items() if not command.hidden]
    assert sorted(name for name in listed if name in cli.commands) == sorted(shown)


@pytest.mark.parametrize("group", ["lessons", "inspect", "policies"])
def test_a_group_alone_lists(group: str, home: Path) -> None:
    default = "sessions" if group == "inspect" else "list"
    outputs = {
        CliRunner().invoke(cli, words).output
        for words in (
            [group, "--home", str(home)],
            [group, default, "--home", str(home)],
            [group, "--home", str(home), default],
        )
    }
    assert len(outputs) == 1
    assert "Usage" not in outputs.pop()


def test_a_home_may_stand_before_the_command(home: Path) -> None:
    done = CliRunner().invoke(cli, ["lessons", "--home", str(home), "pin", "xyz"])
    assert "xyz" in str(done.exception)
    assert CliRunner().invoke(cli, ["lessons", "-h"]).output.startswith("Usage: cli lessons")
    assert "No such command 'lst'" in CliRunner().invoke(cli, ["lessons", "lst"]).output
