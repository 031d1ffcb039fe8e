"""`openclaw-rl connect`: what is printed can be pasted, what is written keeps the rest."""

from __future__ import annotations

import json
import stat
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.render.model_folders import make

from openclaw_rl.cli import connect as commands
from openclaw_rl.cli.main import cli
from openclaw_rl.connect import claude_code_codex, openclaw
from openclaw_rl.connect.json5 import parse
from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.load import Config, from_flat

KEY = "sk-here"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    model = make(tmp_path / "model", "chatml")
    context = {"model_type": "qwen3", "max_position_embeddings": 32768}
    (model / "config.json").write_text(json.dumps(context))
    return from_flat({"home": str(tmp_path), "model.path": str(model), "serve.port": 8123, "serve.api_key": KEY})


def connect(config: Config, *arguments: str) -> Result:
    sets = {"home": config.home, "model.path": config.model.path, "serve.port": 8123, "serve.api_key": KEY}
    given = [f"--set={k}={v}" for k, v in sets.items()]
    return CliRunner().invoke(cli, ["connect", *arguments, *given], catch_exceptions=False)


def test_the_entry_is_of_the_served_model(config: Config) -> None:
    done = connect(config, "openclaw")
    entry = json.loads(done.stdout)["models"]["providers"]["openclaw-rl"]
    assert (entry["baseUrl"], entry["apiKey"]) == ("http://127.0.0.1:8123/v1", KEY)
    assert entry["api"] == "openai-completions"
    (model,) = entry["models"]
    assert (model["id"], model["contextWindow"], model["maxTokens"]) == ("openclaw", 32768, 8192)
    assert "Next: openclaw models set openclaw-rl/openclaw" in done.stderr


def test_it_is_written_once_and_nothing_is_lost(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "oc" / "openclaw.json"
    file.parent.mkdir()
    old = "{ // mine\n  models: { mode: 'replace', providers: { other: { apiKey: 'k' } } },\n}\n"
    file.write_text(old)
    connect(config, "openclaw", "--into", str(file))
    new = file.read_text()
    value = parse(new).value
    assert "// mine" in new
    assert value["models"]["mode"] == "replace"
    assert value["models"]["providers"]["other"] == {"apiKey": "k"}
    assert value["models"]["providers"]["openclaw-rl"] == openclaw.provider_entry(config)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    copies = list(file.parent.glob("*.bak"))
    assert [c.read_text() for c in copies] == [old]
    connect(config, "openclaw", "--into", str(file))
    assert (file.read_text(), list(file.parent.glob("*.bak"))) == (new, copies)


def test_a_file_from_windows_keeps_its_line_ends(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "openclaw.json"
    old = b"\xef\xbb\xbf{ // mine\r\n  models: {\r\n    providers: { other: { apiKey: 'k' } }\r\n  }\r\n}\r\n"
    file.write_bytes(old)
    connect(config, "openclaw", "--into", str(file))
    new = file.read_bytes()
    assert new.count(b"\n") == new.count(b"\r\n") > old.count(b"\n")
    assert new.startswith(b"\xef\xbb\xbf{ // mine\r\n")
    assert new.endswith(b"}\r\n")
    assert parse(new.decode()).value["models"]["providers"]["openclaw-rl"] == openclaw.provider_entry(config)
    assert [c.read_bytes() for c in file.parent.glob("*.bak")] == [old]


def test_what_the_owner_added_to_the_entry_stays(config: Config) -> None:
    text = '{models: {providers: {"openclaw-rl": {headers: {a: "b"}, apiKey: "old"}}}}'
    entry = parse(openclaw.edit_settings(text, openclaw.provider_entry(config))).value["models"]["providers"][
        "openclaw-rl"
    ]
    assert entry == {"headers": {"a": "b"}} | openclaw.provider_entry(config)


def test_a_file_is_made_where_there_is_none(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "new" / "openclaw.json"
    assert openclaw.write_settings(config, file) is None
    assert parse(file.read_text()).value["models"]["mode"] == "merge"


def test_a_file_that_cannot_be_read_stays_as_it_is(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "openclaw.json"
    file.write_text("{ models: [1] }")
    with pytest.raises(OpenClawError, match=r"expected an object.*Nothing was changed"):
        openclaw.write_settings(config, file)
    assert file.read_text() == "{ models: [1] }"


def test_a_link_is_followed(config: Config, tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("{}")
    link.symlink_to(real)
    openclaw.write_settings(config, link)
    assert link.is_symlink()
    assert "openclaw-rl" in real.read_text()


def test_a_context_that_is_too_small_is_said(config: Config) -> None:
    small = config.model_copy(update={"engine": config.engine.model_copy(update={"max_context": 4096})})
    assert openclaw.context_warning(config) is None
    assert "context is 4096 tokens" in (openclaw.context_warning(small) or "")


def test_without_a_key_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(OpenClawError, match="no key yet"):
        openclaw.provider_entry(from_flat({"home": str(tmp_path)}))


@pytest.mark.parametrize(("host", "url"), [("0.0.0.0", "http://127.0.0.1:1"), ("::1", "http://[::1]:1")])
def test_the_address_is_one_that_can_be_reached(host: str, url: str) -> None:
    assert openclaw.base_url(from_flat({"serve.host": host, "serve.port": 1, "serve.api_key": "k"})) == url


def test_claude_code_gets_an_environment(config: Config) -> None:
    lines = connect(config, "claude-code").stdout.splitlines()
    assert "export ANTHROPIC_BASE_URL=http://127.0.0.1:8123" in lines
    assert f"export ANTHROPIC_AUTH_TOKEN={KEY}" in lines


def test_codex_gets_a_provider(config: Config) -> None:
    table = tomllib.loads(connect(config, "codex").stdout)
    provider = table["model_providers"][table["model_provider"]]
    assert (provider["base_url"], provider["wire_api"]) == ("http://127.0.0.1:8123/v1", "responses")
    assert KEY not in str(table)


def test_a_name_with_a_quote_is_still_toml(config: Config) -> None:
    odd = config.model_copy(update={"model": config.model.model_copy(update={"name": 'my "own"\\\x7f'})})
    assert tomllib.loads(claude_code_codex.codex_settings(odd))["model"] == 'my "own"\\\x7f'


def test_the_next_command_names_the_home_that_was_meant(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    commands.connect_codex(config)
    assert f"$(openclaw-rl key --home {config.home})" in capsys.readouterr().err
