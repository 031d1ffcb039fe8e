"""Commands find the system that runs on a home, whatever its port, its model's name and its key."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from openclaw_rl.cli.main import cli
from openclaw_rl.common.gateway_address import GatewayAddress, publish_address
from openclaw_rl.errors import OpenClawError
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies

ADDRESS = GatewayAddress(
    url="http://127.0.0.1:8123", model="mine", model_path="starter", key="file", pid=1
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    store = Store.open(tmp_path / "store.db")
    with store.write() as conn:
        policies.ensure_root(conn, base="b", identity="i", at=1.0)
    store.close()
    (tmp_path / "api_key").write_text("sk-of-the-home\n")
    (tmp_path / "api_key").chmod(0o600)
    return tmp_path


def invoke(home: Path, *arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--home", str(home)], env=environment)


def test_the_settings_for_another_program_are_those_of_the_running_system(home: Path) -> None:
    with publish_address(home, ADDRESS):
        done = invoke(home, "connect", "codex")
    assert 'base_url = "http://127.0.0.1:8123/v1"' in done.output
    assert 'model = "mine"' in done.output
    assert "http://127.0.0.1:8000/v1" in invoke(home, "connect", "codex").output, (
        "without one, those that are given"
    )


def test_the_key_is_the_one_that_the_running_system_accepts(home: Path) -> None:
    with publish_address(home, ADDRESS):
        assert invoke(home, "key", OPENCLAW_API_KEY="sk-of-another").output == "sk-of-the-home\n"
    with publish_address(home, replace(ADDRESS, key="settings")):
        assert invoke(home, "key", OPENCLAW_API_KEY="sk-given").output == "sk-given\n"
        error = invoke(home, "key").exception
    assert isinstance(error, OpenClawError)
    assert "the gateway at http://127.0.0.1:8123 has its key from its settings" in str(error)
    assert invoke(home, "key").output == "sk-of-the-home\n"


def test_status_says_where_the_system_listens(home: Path) -> None:
    with publish_address(home, ADDRESS):
        assert invoke(home, "status").output.startswith(
            "listening at http://127.0.0.1:8123/v1, model mine\n"
        )
        assert json.loads(invoke(home, "status", "--json").output)["gateway"]["url"] == ADDRESS.url
    assert invoke(home, "status").output.startswith(
        "no gateway runs on this home: `openclaw-rl up` starts one\n"
    )
    assert json.loads(invoke(home, "status", "--json").output)["gateway"] is None


@pytest.mark.parametrize("command", [("status",), ("rollback",)])
def test_a_system_that_has_not_started_yet(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Its store is there before its version 0."""
    Store.open(tmp_path / "store.db").close()
    error = invoke(tmp_path, *command).exception
    assert isinstance(error, OpenClawError)
    assert "no policy version yet" in str(error)
